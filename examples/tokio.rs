//! A tokio program that shares one cluster among its tasks: many clients send requests, and each request is a transaction
//! or a lookup.

use std::time::{Duration, Instant};

use farm::prelude::*;
use tokio::sync::{mpsc, oneshot};

const CLIENTS: u64 = 100;
const REQUESTS: u64 = 200;
const PAGES: u64 = 1000;

/// A request of a client, with the channel for its answer.
enum Request {
    Visit(u64, oneshot::Sender<farm::Result<u64>>),
    Visits(u64, oneshot::Sender<farm::Result<u64>>),
}

/// Counts the visits of pages.
async fn serve(farm: Farm, visits: Table<u64, u64>, mut requests: mpsc::Receiver<Request>) {
    while let Some(request) = requests.recv().await {
        let farm = farm.clone();
        // The answers are sent in the order in which they are known.
        tokio::spawn(async move {
            let (answer, result) = match request {
                Request::Visit(page, answer) => {
                    let count = farm.transact(async |tx| {
                        let count = visits.get_or_default(tx, page).await? + 1;
                        visits.put(tx, page, count).await?;
                        Ok(count)
                    });
                    (answer, count.await)
                }
                Request::Visits(page, answer) => (answer, visits.get_or_default(&farm, page).await),
            };
            // The client may have gone.
            let _ = answer.send(result);
        });
    }
}

async fn client(server: mpsc::Sender<Request>, number: u64) -> farm::Result<u64> {
    let mut visited = 0;
    for request in 0..REQUESTS {
        let (answer, answered) = oneshot::channel();
        let page = (number * request) % PAGES;
        let request = match request % 4 {
            0 => Request::Visit(page, answer),
            _ => Request::Visits(page, answer),
        };
        visited += u64::from(matches!(request, Request::Visit(..)));
        if server.send(request).await.is_err() {
            break;
        }
        let waited = tokio::time::timeout(Duration::from_secs(10), answered).await;
        match waited {
            Ok(Ok(count)) => _ = count?,
            _ => return Err(Error::refused("the server did not answer within 10 s")),
        }
    }
    Ok(visited)
}

#[tokio::main]
async fn main() -> farm::Result<()> {
    let cluster = Cluster::local(2).start()?;
    let visits: Table<u64, u64> = cluster.create_table("visits", PAGES)?;
    let farm = cluster.farm();
    let (server, requests) = mpsc::channel(1000);
    let serving = tokio::spawn(serve(farm.clone(), visits, requests));

    let began = Instant::now();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| tokio::spawn(client(server.clone(), number)))
        .collect();
    let mut visited = 0;
    for client in clients {
        visited += client.await.expect("no client panics")?;
    }
    drop(server);
    serving.await.expect("the server does not panic");

    let pages: Vec<u64> = (0..PAGES).collect();
    let counts = visits.get_many(&farm, &pages).await?;
    let sum: u64 = counts.into_iter().flatten().sum();
    println!(
        "{} requests in {:.1?}; {sum} visits of pages",
        CLIENTS * REQUESTS,
        began.elapsed()
    );
    assert_eq!(sum, visited);
    Ok(())
}
