//! The stock libp2p transport is the judge of what is on the wire.

use crate::common::{Node, accept, ask, connect, echo, open, ours, pattern, stock};

/// Echoes over substreams that each end opens.
async fn exchange(mut from: Node, mut to: Node) {
    let (mut here, mut there) = connect(&mut from, &mut to).await;
    for length in [0, 1, 70_000, 3 << 20] {
        let bytes = pattern(length, 1);
        let mut asking = open(&mut here).await;
        tokio::join!(ask(&mut asking, &bytes), async { echo(accept(&mut there).await).await });
        let mut asking = open(&mut there).await;
        tokio::join!(ask(&mut asking, &bytes), async { echo(accept(&mut here).await).await });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn we_dial_a_stock_node() {
    exchange(ours(), stock()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stock_node_dials_us() {
    exchange(stock(), ours()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn we_dial_each_other() {
    exchange(ours(), ours()).await;
}
