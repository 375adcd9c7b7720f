//! Workers of one machine with conflicting transactions, and lock-free readers on another machine: invariants that must
//! hold in every order of events.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use farm_core::alloc::{SizeClass, class_for_payload};
use farm_core::ids::Address;
use farm_core::object::{FatPointer, Image, Incarnation, Version};
use farm_core::worker::{Cont, ReadRequest, ReadResult, Worker};
use farm_testing::receive;
use farm_txn::{Handle, TxError};
use rand::Rng;

use crate::cluster::{Cluster, cluster, put_in_array, transact};

/// Work that a task repeats until it is done.
trait Work: Send + 'static {
    /// Performs one step. Returns false when the work is done.
    fn step(&mut self, farm: &Handle) -> impl Future<Output = bool>;
}

/// Starts the work on a worker. The receiver returns it when it is done.
fn start<W: Work>(
    cluster: &Cluster,
    machine: usize,
    worker: usize,
    mut work: W,
) -> mpsc::Receiver<W> {
    let (done, finished) = mpsc::channel();
    cluster.on(machine, worker, move |w| {
        farm_txn::spawn(w, |farm| async move {
            while work.step(&farm).await {}
            done.send(work).unwrap();
        });
    });
    finished
}

/// Lets another thread run in the middle of some transactions, which seldom happens on few cores.
fn maybe_yield(worker: &mut Worker) {
    if worker.rng().random_range(0..16) == 0 {
        std::thread::yield_now();
    }
}

/// Asserts that an error is a conflict; anything else is a bug.
fn conflict(error: &TxError) {
    assert!(matches!(error, TxError::Abort(_)), "{error}");
}

fn number(payload: &[u8]) -> i64 {
    i64::from_le_bytes(payload[..8].try_into().unwrap())
}

/// Reads both objects and writes its own one: decrements it if the sum of both is positive, else increments it.
/// Serializable transactions only see a sum of 0 or 1.
struct Skew {
    objects: [Address; 2],
    own: usize,
    left: u64,
    committed: i64,
    aborted: u64,
    bad: Vec<i64>,
}

impl Work for Skew {
    async fn step(&mut self, farm: &Handle) -> bool {
        let (addresses, own) = (self.objects, self.own);
        let seen = transact(farm, move |tx, w| {
            let objects = [tx.read(w, addresses[0], 8)?, tx.read(w, addresses[1], 8)?];
            let [x, y] = objects.map(|object| number(tx.payload(object)));
            maybe_yield(w);
            let value = [x, y][own] + if x + y > 0 { -1 } else { 1 };
            tx.payload_mut(objects[own])[..8].copy_from_slice(&value.to_le_bytes());
            Ok(x + y)
        });
        match seen.await {
            Ok(sum) => {
                self.committed += 1;
                if !(0..=1).contains(&sum) {
                    self.bad.push(sum);
                }
            }
            Err(error) => {
                conflict(&error);
                self.aborted += 1;
            }
        }
        self.left -= 1;
        self.left > 0
    }
}

#[test]
fn there_is_no_write_skew() {
    let cluster = cluster("skew", 1, 2);
    let objects = [(); 2].map(|()| cluster.create(0, 0, &[0; 8]));
    let workers = [0, 1].map(|own| {
        let work = Skew {
            objects,
            own,
            left: 40_000,
            committed: 0,
            aborted: 0,
            bad: vec![],
        };
        start(&cluster, 0, own, work)
    });
    let [one, two] = workers.map(|running| receive(&running));
    assert!(
        one.bad.is_empty() && two.bad.is_empty(),
        "sums: {:?} {:?}",
        one.bad,
        two.bad
    );
    let last = objects.map(|at| number(&cluster.contents(0, 0, at, 8).unwrap()));
    let last: i64 = last.iter().sum();
    assert_eq!(
        last,
        (one.committed + two.committed) % 2,
        "the parity of the sum does not match the number of commits"
    );
    assert!(one.committed > 0 && two.committed > 0);
    assert!(
        one.aborted + two.aborted > 0,
        "no transactions conflicted, so the test proves nothing"
    );
    cluster.stop();
}

const ACCOUNTS: usize = 6;
const ACCOUNT_BYTES: usize = 192;
const ACCOUNT_PAYLOAD: usize = 48 + 2 * 62;
const START: i64 = 1000;

/// Returns the payload of an account: every word of it is the balance.
fn account(balance: i64) -> [u8; ACCOUNT_PAYLOAD] {
    let mut payload = [0; ACCOUNT_PAYLOAD];
    for (byte, value) in payload.iter_mut().zip(balance.to_le_bytes().iter().cycle()) {
        *byte = *value;
    }
    payload
}

fn balance(payload: &[u8]) -> i64 {
    let balance = number(payload);
    assert_eq!(
        payload,
        account(balance),
        "the account contains two balances"
    );
    balance
}

/// Moves money between two random accounts, and sometimes reads all of them.
struct Teller {
    first: Address,
    left: u64,
    audits: u64,
    moved: u64,
    aborted: u64,
}

fn at(first: Address, account: usize) -> Address {
    first.checked_add((account * ACCOUNT_BYTES) as u32).unwrap()
}

impl Work for Teller {
    async fn step(&mut self, farm: &Handle) -> bool {
        let choice = farm.with_worker(|w| w.rng().random_range(0..4)).await;
        let outcome = match choice.unwrap() {
            0 => self.audit(farm).await,
            _ => self.transfer(farm).await,
        };
        if let Err(error) = outcome {
            conflict(&error);
            self.aborted += 1;
        }
        self.left -= 1;
        self.left > 0
    }
}

impl Teller {
    async fn transfer(&mut self, farm: &Handle) -> Result<(), TxError> {
        let first = self.first;
        let transferred = transact(farm, move |tx, w| {
            let from = w.rng().random_range(0..ACCOUNTS);
            let to = (from + w.rng().random_range(1..ACCOUNTS)) % ACCOUNTS;
            let amount = w.rng().random_range(1..50);
            for (account, amount) in [(from, -amount), (to, amount)] {
                let object = tx.read(w, at(first, account), ACCOUNT_PAYLOAD)?;
                let new = self::account(balance(tx.payload(object)) + amount);
                tx.payload_mut(object).copy_from_slice(&new);
                maybe_yield(w);
            }
            Ok(())
        });
        transferred.await?;
        self.moved += 1;
        Ok(())
    }

    async fn audit(&mut self, farm: &Handle) -> Result<(), TxError> {
        let first = self.first;
        let sum = transact(farm, move |tx, w| {
            let mut sum = 0;
            for account in 0..ACCOUNTS {
                let object = tx.read(w, at(first, account), ACCOUNT_PAYLOAD)?;
                sum += balance(tx.payload(object));
            }
            maybe_yield(w);
            Ok(sum)
        });
        assert_eq!(
            sum.await?,
            ACCOUNTS as i64 * START,
            "a committed audit saw a wrong sum"
        );
        self.audits += 1;
        Ok(())
    }
}

/// Repeatedly reads two adjacent accounts by one read. Each must be consistent, and its version must never decrease.
struct Watcher {
    first: Address,
    newest: [Version; ACCOUNTS],
    reads: u64,
    moving: u64,
    stop: mpsc::Receiver<()>,
    done: mpsc::Sender<(u64, u64)>,
}

fn watch(worker: &mut Worker, _: u64, (): ()) {
    let account = worker.rng().random_range(0..ACCOUNTS - 1);
    let watcher = worker.layer::<Watcher>().unwrap();
    if watcher.stop.try_recv().is_ok() {
        watcher.done.send((watcher.reads, watcher.moving)).unwrap();
        return;
    }
    let class = class_for_payload(ACCOUNT_PAYLOAD).unwrap();
    let request = ReadRequest::objects(at(watcher.first, account), class, 2);
    worker
        .read_lock_free(request, Cont::new(watched, account as u64))
        .unwrap();
}

fn watched(worker: &mut Worker, account: u64, result: ReadResult) {
    let slot = result.unwrap();
    let (watcher, arena) = worker.layer_and_arena::<Watcher>();
    let words = &arena.words(&slot)[..2 * ACCOUNT_BYTES / 8];
    for (index, object) in words.chunks_exact(ACCOUNT_BYTES / 8).enumerate() {
        let image = Image::check(object).unwrap();
        let mut payload = [0; ACCOUNT_PAYLOAD];
        image.copy_payload(0, &mut payload);
        balance(&payload);
        let newest = &mut watcher.newest[account as usize + index];
        assert!(
            image.version() >= *newest,
            "the version of account {account} decreased from {newest:?}"
        );
        watcher.moving += u64::from(image.version() > *newest);
        *newest = image.version();
    }
    watcher.reads += 1;
    arena.give(slot);
    watch(worker, 0, ());
}

#[test]
fn the_sum_of_all_accounts_is_constant() {
    let cluster = cluster("bank", 2, 2);
    let class = class_for_payload(ACCOUNT_PAYLOAD).unwrap();
    assert_eq!(class.object_bytes(), ACCOUNT_BYTES);
    let first = cluster.on(0, 0, move |w| {
        let array = w.reserve_array(class, ACCOUNTS as u32, None).unwrap();
        for index in 0..ACCOUNTS as u32 {
            put_in_array(w, &array, index, &account(START));
        }
        array.first()
    });
    let mut watchers = vec![];
    for worker in [0, 1] {
        let ((stop, stopped), (done, seen)) = (mpsc::channel(), mpsc::channel());
        cluster.on(1, worker, move |w| {
            let newest = [Version::ZERO; ACCOUNTS];
            w.put_layer(Box::new(Watcher {
                first,
                newest,
                reads: 0,
                moving: 0,
                stop: stopped,
                done,
            }));
            watch(w, 0, ());
        });
        watchers.push((stop, seen));
    }
    let tellers = [0, 1].map(|worker| {
        start(
            &cluster,
            0,
            worker,
            Teller {
                first,
                left: 12_000,
                audits: 0,
                moved: 0,
                aborted: 0,
            },
        )
    });
    let tellers = tellers.map(|running| receive(&running));
    for (stop, seen) in watchers {
        stop.send(()).unwrap();
        let (reads, moving) = receive(&seen);
        assert!(
            reads > 0 && moving > 0,
            "{reads} reads saw {moving} changes"
        );
    }
    let account = |n| {
        cluster
            .contents(0, 1, at(first, n), ACCOUNT_PAYLOAD)
            .unwrap()
    };
    let sum: i64 = (0..ACCOUNTS).map(|n| balance(&account(n))).sum();
    assert_eq!(sum, ACCOUNTS as i64 * START);
    for teller in tellers {
        assert!(
            teller.moved > 0 && teller.audits > 0,
            "{} moved, {} audits",
            teller.moved,
            teller.audits
        );
    }
    cluster.stop();
}

/// Frees the object to which the root points, and allocates another one in its place, in one transaction.
struct Replacer {
    root: Address,
    next_tag: u64,
    left: u64,
    replaced: u64,
}

const TARGET_PAYLOAD: usize = 100;

fn target(tag: u64) -> [u8; TARGET_PAYLOAD] {
    let mut payload = [0; TARGET_PAYLOAD];
    for (byte, value) in payload.iter_mut().zip(tag.to_le_bytes().iter().cycle()) {
        *byte = *value;
    }
    payload
}

fn root_payload(pointer: FatPointer, tag: u64) -> [u8; 24] {
    let [a, b] = pointer.to_words();
    let mut payload = [0; 24];
    for (to, word) in payload.chunks_exact_mut(8).zip([a, b, tag]) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    payload
}

fn pointer_and_tag(payload: &[u8]) -> (FatPointer, u64) {
    let word = |at: usize| u64::from_le_bytes(payload[at * 8..][..8].try_into().unwrap());
    (FatPointer::from_words([word(0), word(1)]).unwrap(), word(2))
}

async fn replace(farm: &Handle, root: Address, tag: u64) -> Result<(), TxError> {
    let replaced = transact(farm, move |tx, w| {
        let root = tx.read(w, root, 24)?;
        let (pointer, _) = pointer_and_tag(tx.payload(root));
        let old = tx.read(w, pointer.address, TARGET_PAYLOAD)?;
        assert_eq!(tx.class(old), pointer.class());
        tx.free(old);
        let new = tx.alloc(w, TARGET_PAYLOAD, None)?;
        tx.payload_mut(new)[..TARGET_PAYLOAD].copy_from_slice(&target(tag));
        let payload = root_payload(tx.pointer(new), tag);
        tx.payload_mut(root)[..24].copy_from_slice(&payload);
        Ok(())
    });
    replaced.await
}

impl Work for Replacer {
    async fn step(&mut self, farm: &Handle) -> bool {
        self.next_tag += 2;
        match replace(farm, self.root, self.next_tag).await {
            Ok(()) => self.replaced += 1,
            // The target was freed after this transaction read the root.
            Err(TxError::NotAllocated(_)) => {}
            Err(error) => conflict(&error),
        }
        self.left -= 1;
        self.left > 0
    }
}

/// Reads the root, and then the target of its pointer. If the pointer refers to the object found there, it must be the
/// object that was meant.
struct Follower {
    root: Address,
    pointer: Option<(FatPointer, u64)>,
    named: u64,
    stale: u64,
    stop: mpsc::Receiver<()>,
    done: mpsc::Sender<(u64, u64)>,
}

fn follow(worker: &mut Worker, _: u64, (): ()) {
    let follower = worker.layer::<Follower>().unwrap();
    if follower.stop.try_recv().is_ok() {
        follower
            .done
            .send((follower.named, follower.stale))
            .unwrap();
        return;
    }
    let request = ReadRequest::object(follower.root, SizeClass::SMALLEST);
    worker
        .read_lock_free(request, Cont::new(root_came, 0))
        .unwrap();
}

fn payload_of<const N: usize>(
    worker: &mut Worker,
    result: ReadResult,
    bytes: usize,
) -> (Incarnation, [u8; N]) {
    let slot = result.unwrap();
    let image = Image::check(&worker.arena().words(&slot)[..bytes / 8]).unwrap();
    let mut payload = [0; N];
    image.copy_payload(0, &mut payload);
    let incarnation = image.incarnation();
    worker.arena().give(slot);
    (incarnation, payload)
}

fn root_came(worker: &mut Worker, _: u64, result: ReadResult) {
    let (_, payload) = payload_of::<24>(worker, result, 64);
    let (pointer, tag) = pointer_and_tag(&payload);
    worker.layer::<Follower>().unwrap().pointer = Some((pointer, tag));
    let request = ReadRequest::object(pointer.address, pointer.class());
    worker
        .read_lock_free(request, Cont::new(target_came, 0))
        .unwrap();
}

fn target_came(worker: &mut Worker, _: u64, result: ReadResult) {
    let (incarnation, payload) = payload_of::<TARGET_PAYLOAD>(worker, result, 128);
    let follower = worker.layer::<Follower>().unwrap();
    let (pointer, tag) = follower.pointer.take().unwrap();
    if pointer.names(incarnation) {
        assert_eq!(
            payload,
            target(tag),
            "the pointer refers to another object than was meant"
        );
        follower.named += 1;
    } else {
        follower.stale += 1;
    }
    follow(worker, 0, ());
}

#[test]
fn a_fat_pointer_refers_to_its_own_object_or_to_none() {
    let cluster = cluster("pointers", 2, 2);
    let root = cluster.transact(0, 0, |tx, w| {
        let first = tx.alloc(w, TARGET_PAYLOAD, None)?;
        tx.payload_mut(first)[..TARGET_PAYLOAD].copy_from_slice(&target(0));
        let root = tx.alloc(w, 24, None)?;
        let payload = root_payload(tx.pointer(first), 0);
        tx.payload_mut(root)[..24].copy_from_slice(&payload);
        Ok(tx.address(root))
    });
    let root = root.unwrap();
    let mut followers = vec![];
    for (machine, worker) in [(1, 0), (1, 1)] {
        let ((stop, stopped), (done, seen)) = (mpsc::channel(), mpsc::channel());
        cluster.on(machine, worker, move |w| {
            w.put_layer(Box::new(Follower {
                root,
                pointer: None,
                named: 0,
                stale: 0,
                stop: stopped,
                done,
            }));
            follow(w, 0, ());
        });
        followers.push((stop, seen));
    }
    let replacers = [0, 1].map(|worker| {
        let work = Replacer {
            root,
            next_tag: worker as u64,
            left: 20_000,
            replaced: 0,
        };
        start(&cluster, 0, worker, work)
    });
    let replaced: u64 = replacers
        .map(|running| receive(&running).replaced)
        .iter()
        .sum();
    let mut stale_in_all = 0;
    for (stop, seen) in followers {
        stop.send(()).unwrap();
        let (named, stale) = receive(&seen);
        assert!(
            named > 0,
            "{named} reads found their object, {stale} did not"
        );
        stale_in_all += stale;
    }
    assert!(
        replaced > 0 && stale_in_all > 0,
        "{replaced} replaced, {stale_in_all} stale: the test proves nothing"
    );
    for worker in [0, 1] {
        cluster.settle(0, worker);
    }
    let class = class_for_payload(TARGET_PAYLOAD).unwrap();
    let live: u64 = [0, 1]
        .map(|worker| cluster.on(0, worker, move |w| w.slab_usage(class).live))
        .iter()
        .sum();
    assert_eq!(live, 1, "only one target is left; all others were released");
    cluster.stop();
}

/// Number of objects that are always written together, with the same number in each. The readers check the first and
/// the last object; the others lengthen the commit.
const TOGETHER: usize = 16;
const TOGETHER_PAYLOAD: usize = 700;
const ENOUGH_CHANGES: u64 = 3000;

struct Together {
    objects: Arc<[Address]>,
    next: i64,
    stop: Arc<AtomicBool>,
}

impl Work for Together {
    async fn step(&mut self, farm: &Handle) -> bool {
        let (objects, next) = (Arc::clone(&self.objects), self.next);
        let written = transact(farm, move |tx, w| {
            for address in &*objects {
                let object = tx.read(w, *address, TOGETHER_PAYLOAD)?;
                tx.payload_mut(object)[..8].copy_from_slice(&next.to_le_bytes());
            }
            Ok(())
        });
        written.await.unwrap();
        self.next += 1;
        !self.stop.load(Ordering::Relaxed)
    }
}

/// Reads the two objects alternately: a later read must never return an older number.
struct InTurn {
    objects: [Address; 2],
    newest: i64,
    changes: u64,
    left: u64,
    done: mpsc::Sender<u64>,
}

fn next_of(worker: &mut Worker, which: u64, (): ()) {
    let reader = worker.layer::<InTurn>().unwrap();
    if reader.left == 0 || reader.changes == ENOUGH_CHANGES {
        return reader.done.send(reader.changes).unwrap();
    }
    reader.left -= 1;
    let address = reader.objects[which as usize];
    let class = class_for_payload(TOGETHER_PAYLOAD).unwrap();
    let request = ReadRequest::object(address, class);
    let cont = Cont::new(one_came, which);
    worker.read_lock_free(request, cont).unwrap();
}

fn one_came(worker: &mut Worker, which: u64, result: ReadResult) {
    let bytes = class_for_payload(TOGETHER_PAYLOAD).unwrap().object_bytes();
    let (_, payload) = payload_of::<8>(worker, result, bytes);
    let reader = worker.layer::<InTurn>().unwrap();
    let now = number(&payload);
    assert!(
        now >= reader.newest,
        "object {which} has number {now}, but an earlier read returned {}",
        reader.newest
    );
    reader.changes += u64::from(now > reader.newest);
    reader.newest = now;
    next_of(worker, 1 - which, ());
}

/// All objects of a commit are locked exclusively before the first is installed. So after a read of the new value of
/// one object, no read returns the old value of another.
#[test]
fn a_commit_becomes_visible_at_once() {
    let cluster = cluster("at-once", 2, 1);
    let objects = cluster.create_all(0, 0, &[[0; TOGETHER_PAYLOAD]; TOGETHER]);
    let (first, last) = (objects[0], objects[TOGETHER - 1]);
    let stop = Arc::new(AtomicBool::new(false));
    let next = 1;
    let writer = Together {
        objects: objects.into(),
        next,
        stop: Arc::clone(&stop),
    };
    let writing = start(&cluster, 0, 0, writer);
    let (done, read) = mpsc::channel();
    cluster.on(1, 0, move |w| {
        w.put_layer(Box::new(InTurn {
            objects: [first, last],
            newest: 0,
            changes: 0,
            left: 2_000_000,
            done,
        }));
        next_of(w, 0, ());
    });
    let changes = receive(&read);
    stop.store(true, Ordering::Relaxed);
    let written = receive(&writing).next;
    assert!(
        changes > 0,
        "{changes} of {written} commits were seen: the test proves nothing"
    );
    cluster.stop();
}
