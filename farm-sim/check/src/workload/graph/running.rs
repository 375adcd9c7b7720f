//! The clients' operations, from the first request to the record of their results.

use farm_core::worker::{Cont, Worker};
use farm_txn::{Handle, TxError, api};

use super::calls::{alone, in_task, in_transaction, targets};
use super::results::pending;
use super::state::{Failure, Got, Pending, Via, graph_work, refusal};
use crate::history::graph::{GraphOperation, GraphRequest};
use crate::workload::clients::{MOST_ATTEMPTS, again_soon, end_all, ended};
use crate::workload::state::{moment, work};

/// Begins the operations of a client.
pub(super) fn begin(worker: &mut Worker, client: usize, via: Via, steps: Vec<GraphRequest>) {
    graph_work(worker).pending[client] = Some(Pending {
        via,
        steps: Vec::new(),
        drawn: steps,
        results: Vec::new(),
        pointers: Vec::new(),
        own: Vec::new(),
        tx: None,
        attempt: 0,
        in_doubt: false,
        wrong: None,
    });
    attempt(worker, client, ());
}

fn attempt(worker: &mut Worker, client: usize, (): ()) {
    let now = moment(worker);
    work(worker).clients[client].begun = now;
    let Some(pending) = pending(worker, client) else {
        return;
    };
    pending.results.clear();
    pending.pointers.clear();
    pending.own.clear();
    pending.steps.clone_from(&pending.drawn);
    match pending.via {
        Via::Alone => {
            begin_to_commit(worker, client);
            make_step(worker, client);
        }
        Via::Tx => {
            let tx = api::begin(worker);
            if let Some(pending) = self::pending(worker, client) {
                pending.tx = Some(tx);
            }
            make_step(worker, client);
        }
        Via::Task => farm_txn::spawn(worker, move |farm| async move {
            // If the worker stops, the operations end without a result.
            let _ = run_task(&farm, client).await;
        }),
    }
}

/// Makes the next step; if there is none, ends the operation or commits the transaction.
fn make_step(worker: &mut Worker, client: usize) {
    let Some(pending) = pending(worker, client) else {
        return;
    };
    let (via, tx) = (pending.via, pending.tx);
    let request = pending.steps.get(pending.results.len()).cloned();
    let targets = request.as_ref().and_then(|it| targets(worker, client, it));
    let (Some(request), Some(targets)) = (request, targets) else {
        let Some(pending) = self::pending(worker, client) else {
            return;
        };
        pending.steps.truncate(pending.results.len());
        let Some(tx) = tx else {
            return end_try(worker, client, Ok(()));
        };
        begin_to_commit(worker, client);
        return api::commit(worker, tx, Cont::new(committed, client));
    };
    match (via, tx) {
        (Via::Tx, Some(tx)) => in_transaction(worker, tx, client, &request, targets),
        _ => alone(worker, client, &request, targets),
    }
}

/// Handles the result of a step.
pub(super) fn stepped(worker: &mut Worker, client: usize, got: Got) {
    let Some(pending) = pending(worker, client) else {
        return;
    };
    match (got, pending.tx) {
        (Ok(result), _) => {
            pending.results.push(result);
            make_step(worker, client);
        }
        (Err(failure), None) => end_try(worker, client, Err(failure)),
        // The transaction may have read objects that do not fit together.
        (Err(Failure::Wrong(why)), Some(tx)) => {
            pending.wrong = Some(why);
            api::validate(worker, tx, Cont::new(committed, client));
        }
        (Err(failure), Some(tx)) => {
            pending.tx = None;
            api::abort(worker, tx);
            end_try(worker, client, Err(failure));
        }
    }
}

fn committed(worker: &mut Worker, client: usize, result: Result<(), TxError>) {
    let Some(pending) = pending(worker, client) else {
        return;
    };
    pending.tx = None;
    let wrong = pending.wrong.take();
    let outcome = match (result, wrong) {
        (Ok(()), None) => Ok(()),
        (Ok(()), Some(why)) => Err(Failure::Wrong(why)),
        (Err(error), _) => refusal(error.into()).map(|_| ()),
    };
    end_try(worker, client, outcome);
}

async fn run_task(farm: &Handle, client: usize) -> Result<(), TxError> {
    let tx = farm.begin().await.unwrap();
    let wrong = loop {
        let next = move |worker: &mut Worker| {
            let pending = pending(worker, client)?;
            let request = pending.steps.get(pending.results.len()).cloned()?;
            let targets = targets(worker, client, &request)?;
            Some((request, targets))
        };
        let Some((request, targets)) = farm.with_worker(next).await? else {
            break None;
        };
        match in_task(farm, *tx, client, &request, targets).await? {
            Ok(result) => {
                farm.with_worker(move |worker| {
                    if let Some(pending) = pending(worker, client) {
                        pending.results.push(result);
                    }
                })
                .await?;
            }
            Err(Failure::Wrong(why)) => break Some(why),
            Err(failure) => {
                tx.abort();
                return farm
                    .with_worker(move |worker| end_try(worker, client, Err(failure)))
                    .await;
            }
        }
    };
    let commits = wrong.is_none();
    farm.with_worker(move |worker| {
        if let Some(pending) = pending(worker, client) {
            pending.wrong = wrong;
            pending.in_doubt = false;
            pending.steps.truncate(pending.results.len());
        }
        if commits {
            begin_to_commit(worker, client);
        }
    })
    .await?;
    let result = match commits {
        true => tx.commit().await,
        false => tx.validate().await,
    };
    if matches!(result, Err(TxError::Ended)) {
        return result;
    }
    farm.with_worker(move |worker| committed(worker, client, result))
        .await
}

/// From now on the operations of a client may take effect.
fn begin_to_commit(worker: &mut Worker, client: usize) {
    let Some(pending) = pending(worker, client) else {
        return;
    };
    pending.in_doubt = true;
    let steps = pending.steps.clone();
    let work = work(worker);
    let state = &work.clients[client];
    work.log.begin_graph(|| GraphOperation {
        client: state.number,
        begun: state.begun,
        ended: None,
        steps: steps.into_iter().map(|request| (request, None)).collect(),
    });
}

/// The operations of a client have had no effect.
fn refuse(worker: &mut Worker, client: usize) {
    if let Some(pending) = pending(worker, client) {
        pending.in_doubt = false;
    }
    let work = work(worker);
    work.log.refuse_graph(work.clients[client].number);
}

/// Ends a try of the operations of a client.
fn end_try(worker: &mut Worker, client: usize, outcome: Result<(), Failure>) {
    let (now, survives) = (moment(worker), worker.survives());
    let Some(pending) = pending(worker, client) else {
        return;
    };
    match outcome {
        Ok(()) => record(worker, client, Some(now)),
        Err(Failure::Conflict) if pending.attempt < MOST_ATTEMPTS => {
            pending.attempt += 1;
            refuse(worker, client);
            return again_soon(worker, client, attempt);
        }
        Err(Failure::Conflict | Failure::Full) => {
            refuse(worker, client);
            graph_work(worker).pending[client] = None;
        }
        // Operations that may have taken effect are recorded when the log is taken.
        Err(Failure::Lost | Failure::Leaving) => {
            refuse(worker, client);
            return end_all(worker);
        }
        Err(Failure::InDoubt) if survives => record(worker, client, None),
        Err(Failure::InDoubt) => return end_all(worker),
        Err(Failure::Wrong(why)) => {
            let steps = format!("{:?}", pending.steps);
            let why = format!("operations on the graph failed: {why}; {steps}");
            work(worker).log.violate(why);
            return end_all(worker);
        }
    }
    ended(worker, client);
}

/// Records the operations of a client, and forgets them.
fn record(worker: &mut Worker, client: usize, ended: Option<u64>) {
    let Some(pending) = graph_work(worker).pending[client].take() else {
        return;
    };
    let Pending {
        steps,
        results,
        pointers,
        own,
        ..
    } = pending;
    let work = work(worker);
    let state = &work.clients[client];
    let mut results = results.into_iter();
    work.log.end_graph(GraphOperation {
        client: state.number,
        begun: state.begun,
        ended,
        steps: steps
            .into_iter()
            .map(|request| (request, results.next()))
            .collect(),
    });
    if ended.is_none() {
        return;
    }
    let state = graph_work(worker);
    let mut wrong = None;
    for (id, pointer) in pointers {
        if own.contains(&pointer) {
            continue;
        }
        let known = *state.nodes.entry(id).or_insert(pointer);
        if known != pointer {
            wrong = Some(format!(
                "node {id} is at {known:?}, but also at {pointer:?}"
            ));
        }
    }
    state.own.extend(own);
    if let Some(wrong) = wrong {
        self::work(worker).log.violate(wrong);
    }
}

/// Records the operations that are under way and may take effect.
pub(super) fn note_unanswered(worker: &mut Worker) {
    for client in 0..graph_work(worker).pending.len() {
        if pending(worker, client).is_some_and(|pending| pending.in_doubt) {
            record(worker, client, None);
        }
    }
}
