//! A program that is one machine of a cluster. The other machines run elsewhere: in other programs, or as `farm node`.
//!
//! ```sh
//! farm node --config config/local.toml --machine 2 &
//! farm node --config config/local.toml --machine 3 &
//! cargo run --release --example join -- config/local.toml 1
//! ```

use farm::prelude::*;

fn main() -> farm::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [config, machine] = &arguments[..] else {
        return Err(Error::refused("usage: join CONFIG MACHINE"));
    };
    let machine = machine.parse().ok().and_then(MachineId::new);
    let machine = machine.ok_or(Error::refused("MACHINE is the id of a machine"))?;

    // Waits until all machines are connected.
    let cluster = Cluster::join(config, machine).start()?;
    // Whichever program comes first creates the table; the pairs are on all machines.
    let words: Table<[u8; 8], u64> = cluster.create_table("words", 1000)?;
    cluster.block_on(async |farm| {
        for word in ["pooled", "memory", "pooled", "reads"] {
            let mut key = [b' '; 8];
            key[..word.len()].copy_from_slice(word.as_bytes());
            let count = farm.transact(async |tx| {
                let count = words.get_or_default(tx, key).await? + 1;
                words.put(tx, key, count).await?;
                Ok(count)
            });
            println!("{word} {}", count.await?);
        }
        Ok::<_, Error>(())
    })?;
    // The other machines stop when this one leaves, unless it has no memory of its own: `memory_bytes = 0` in its section.
    cluster.stop()
}
