//! Lock-free reads of objects that entries of churn name.

use farm_core::alloc::SizeClass;
use farm_core::object::Image;
use farm_core::worker::{Cont, ReadError, ReadRequest, ReadResult, Worker};
use rand::Rng;

use super::clients::{again_soon, end_all, ended};
use super::doing::Doing;
use super::named::Named;
use super::state::work;
use super::value::Value;

/// Maximum number of pointers that a worker keeps.
const MOST_KEPT: usize = 32;

/// Reads the object that an entry named, without locks. One read in eight uses a wrong size class. Of the others, half
/// also keep the pointer for a later read.
pub(super) fn follow(worker: &mut Worker, client: usize, mut named: Named) {
    let rng = &mut work(worker).clients[client].rng;
    if rng.random_bool(0.125) {
        let other = named.class.get() ^ rng.random_range(1..4);
        named.class = SizeClass::new(other);
    } else if rng.random_bool(0.5) {
        let (number, kept) = (rng.random_range(0..MOST_KEPT), &mut work(worker).kept);
        let named = Named {
            is_fresh: false,
            ..named
        };
        match kept.get_mut(number) {
            Some(older) => *older = named,
            None => kept.push(named),
        }
    }
    begin(worker, client, named);
}

/// Chooses one of the kept pointers at random and reads the object that it names, in an operation that begins after
/// the pointer was read. Returns false if the chosen slot is empty.
pub(super) fn follow_kept(worker: &mut Worker, client: usize) -> bool {
    let work = work(worker);
    let number = work.clients[client].rng.random_range(0..MOST_KEPT);
    let Some(named) = work.kept.get(number).copied() else {
        return false;
    };
    begin(worker, client, named);
    true
}

fn begin(worker: &mut Worker, client: usize, named: Named) {
    work(worker).clients[client].doing = Doing::Named(named);
    read(worker, client, ());
}

fn read(worker: &mut Worker, client: usize, (): ()) {
    let Doing::Named(named) = work(worker).clients[client].doing else {
        return;
    };
    let cont = Cont::new(read_done, client);
    let posted = match named.is_fresh {
        true => worker.read_lock_free(
            ReadRequest::object(named.pointer.address, named.class),
            cont,
        ),
        false => worker.read_pointer_lock_free(named.pointer, cont),
    };
    if posted.is_err() {
        again_soon(worker, client, read);
    }
}

fn read_done(worker: &mut Worker, client: usize, result: ReadResult) {
    let index = client;
    let Doing::Named(named) = work(worker).clients[index].doing else {
        return;
    };
    let slot = match result {
        Ok(slot) => slot,
        Err(ReadError::Busy) => return again_soon(worker, client, read),
        Err(ReadError::PeerLost(_)) => return end_all(worker),
        Err(error) => {
            let held = named.is_fresh && named.class == named.pointer.class();
            if held && !matches!(error, ReadError::StaysLocked(_)) {
                let why = format!(
                    "client {index} cannot read the object at {}, named by churn entry {}, although the operation that \
                     read the entry is still open: {error}",
                    named.pointer.address, named.entry
                );
                work(worker).log.violate(why);
            }
            return ended(worker, index);
        }
    };
    let bytes = named.class.object_bytes();
    let words = &worker.arena().words(&slot)[..bytes / 8];
    let incarnation = Image::check(words)
        .expect("every successful lock-free read returns a consistent image")
        .incarnation();
    let (version, payload) = image_of(words, bytes);
    worker.arena().give(slot);
    if named.class != named.pointer.class() {
        let why = format!(
            "client {index} read the object at {}, version {version}, as {bytes} bytes, but its class has {} bytes",
            named.pointer.address,
            named.pointer.class().object_bytes()
        );
        work(worker).log.violate(why);
    } else if named.pointer.names(incarnation) {
        judge(worker, index, named, version, &payload);
    }
    ended(worker, index);
}

/// Checks that the object that was read was created by the write that the entry records. Later writes may have updated
/// the object. To be called only if the pointer still names the object.
fn judge(worker: &mut Worker, client: usize, named: Named, version: u64, payload: &[u8]) {
    let found = Value::read(payload);
    if found
        .as_ref()
        .is_ok_and(|found| found.data[0] == named.born)
    {
        return;
    }
    let why = format!(
        "client {client} read the object at {}, version {version}, which churn entry {} names as created by write {}, \
         but found {found:?}",
        named.pointer.address, named.entry, named.born
    );
    work(worker).log.violate(why);
}

/// Returns the version and the payload of an image that was found consistent.
pub(super) fn image_of(words: &[u64], bytes: usize) -> (u64, Vec<u8>) {
    let image = Image::check(&words[..bytes / 8])
        .expect("every successful lock-free read returns a consistent image");
    let mut payload = vec![0; image.payload_len()];
    image.copy_payload(0, &mut payload);
    (image.version().get(), payload)
}
