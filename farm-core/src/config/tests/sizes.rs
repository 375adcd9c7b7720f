//! Invalid sizes, alone and in combination.

use super::*;
use crate::ids::MachineId;

#[test]
fn impossible_sizes_are_refused() {
    for (lines, line, key, words) in [
        (
            "region_bytes = 0",
            4,
            "memory.region_bytes",
            ["the size is 0", "multiple"],
        ),
        (
            "region_bytes = \"1537KiB\"",
            4,
            "memory.region_bytes",
            [
                "not a multiple of memory.block_bytes, which is 1MiB",
                "write \"2MiB\"",
            ],
        ),
        (
            "region_bytes = \"8GiB\"",
            4,
            "memory.region_bytes",
            ["more than 4GiB", "write \"4GiB\""],
        ),
        (
            "block_bytes = 0",
            4,
            "memory.block_bytes",
            ["the size is 0", "write \"1MiB\""],
        ),
        (
            "block_bytes = \"3MiB\"",
            4,
            "memory.block_bytes",
            ["power of two", "write \"4MiB\""],
        ),
        (
            "block_bytes = \"64KiB\"",
            4,
            "memory.block_bytes",
            ["less than 1MiB", "write \"1MiB\""],
        ),
        (
            "block_bytes = \"1GiB\"",
            4,
            "memory.block_bytes",
            ["more than 256MiB", "\"256MiB\""],
        ),
        (
            "per_machine_bytes = \"3GiB\"",
            4,
            "memory.per_machine_bytes",
            [
                "not a multiple of memory.region_bytes, which is 2GiB",
                "write \"4GiB\"",
            ],
        ),
        (
            "per_machine_bytes = 0",
            4,
            "memory.per_machine_bytes",
            ["size is 0", "\"2GiB\""],
        ),
        (
            "per_machine_bytes = \"1PiB\"",
            4,
            "memory.per_machine_bytes",
            ["unit \"PiB\"", "TiB"],
        ),
        (
            "per_machine_bytes = \"32TiB\"",
            4,
            "memory.per_machine_bytes",
            ["16TiB", "write"],
        ),
        (
            "region_bytes = 18446744073709551615",
            4,
            "memory.region_bytes",
            ["18446744073709551615B is more than", "write \"4GiB\""],
        ),
    ] {
        let text = with_machine(&format!("[memory]\n{lines}\n"));
        let found = problems(&text);
        let problem = found
            .iter()
            .find(|problem| problem.key == key)
            .expect(lines);
        let place = Place::File {
            name: "x.toml".to_owned(),
            line,
        };
        assert_eq!(problem.place, place, "{lines}");
        let said = problem.to_string();
        assert!(
            words.iter().all(|word| said.contains(word)),
            "{words:?} in {said:?}"
        );
    }
}

#[test]
fn impossible_rings_are_refused() {
    let kind = ProblemKind::ImpossibleSize;
    for (line, key, word) in [
        ("ring_bytes = 0", "rings.ring_bytes", "the size is 0"),
        (
            "ring_bytes = \"768KiB\"",
            "rings.ring_bytes",
            "write \"1MiB\"",
        ),
        (
            "ring_bytes = \"4KiB\"",
            "rings.ring_bytes",
            "less than 32KiB",
        ),
        (
            "ring_bytes = \"2GiB\"",
            "rings.ring_bytes",
            "more than 1GiB",
        ),
        (
            "max_message_bytes = 0",
            "rings.max_message_bytes",
            "the size is 0",
        ),
        (
            "max_message_bytes = 1001",
            "rings.max_message_bytes",
            "write 1008",
        ),
    ] {
        let text = with_machine(&format!("[rings]\n{line}\n"));
        refused(&text, kind, 4, key, &[word]);
    }
    let text = with_machine("[rings]\nmax_message_bytes = 8\n");
    let found = &problems(&text)[0];
    assert!(
        found.found.contains("too few for the smallest call"),
        "{found}"
    );
}

#[test]
fn a_ring_too_small_for_the_largest_message_is_refused_where_either_is_written() {
    let kind = ProblemKind::Inconsistent;
    let words = [
        "64KiB is more than 1/8 of rings.ring_bytes, which is 256KiB",
        "\"512KiB\"",
    ];
    let text = with_machine("[rings]\nring_bytes = \"256KiB\"\n");
    refused(&text, kind, 4, "rings.max_message_bytes", &words);
    let words = [
        "256KiB is more than 1/8 of rings.ring_bytes, which is 1MiB",
        "\"2MiB\"",
    ];
    let text = with_machine("[rings]\nmax_message_bytes = \"256KiB\"\n");
    refused(&text, kind, 4, "rings.max_message_bytes", &words);
}

#[test]
fn impossible_workers_are_refused() {
    for (line, key, word) in [
        ("spin_us = 1000001", "worker.spin_us", "write 1000000"),
        ("yield_us = 1000001", "worker.yield_us", "write 1000000"),
        (
            "operations_in_flight = 0",
            "worker.operations_in_flight",
            "write 1",
        ),
        (
            "operations_in_flight = 65537",
            "worker.operations_in_flight",
            "write 65536",
        ),
    ] {
        let text = with_machine(&format!("[worker]\n{line}\n"));
        refused(&text, ProblemKind::OutOfRange, 4, key, &[word]);
    }
}

#[test]
fn impossible_limits_of_transactions_are_refused() {
    let (range, size) = (ProblemKind::OutOfRange, ProblemKind::ImpossibleSize);
    for (line, kind, key, word) in [
        ("objects = 0", range, "transactions.objects", "write 1"),
        (
            "objects = 16777217",
            range,
            "transactions.objects",
            "write 16777216",
        ),
        (
            "bytes = \"1023KiB\"",
            size,
            "transactions.bytes",
            "write \"1MiB\"",
        ),
        (
            "bytes = \"2GiB\"",
            size,
            "transactions.bytes",
            "write \"1GiB\"",
        ),
        ("open_ms = 0", range, "transactions.open_ms", "write 1"),
        (
            "patience_ms = 3600001",
            range,
            "transactions.patience_ms",
            "write 3600000",
        ),
        (
            "concurrency = 0",
            range,
            "transactions.concurrency",
            "write 1",
        ),
    ] {
        let text = with_machine(&format!("[transactions]\n{line}\n"));
        refused(&text, kind, 4, key, &[word]);
    }
    let text = with_machine(
        "[transactions]\nobjects = 100000\nbytes = \"1GiB\"\npatience_ms = 0\nopen_ms = 5\nconcurrency = 8\n",
    );
    let config = Config::from_str(&text, "x.toml").expect("values at the limits are valid");
    let expected = TransactionsConfig {
        objects: 100_000,
        bytes: GIB,
        patience_ms: 0,
        open_ms: 5,
        concurrency: 8,
    };
    assert_eq!(config.transactions, expected);
}

#[test]
fn invalid_names_and_paths_are_refused() {
    let long_name = format!("name = \"{}\"", "a".repeat(41));
    let long_dir = format!("run_dir = \"/{}\"", "x".repeat(100));
    for (line, key, word) in [
        ("name = \"\"", "cluster.name", "the cluster's name is empty"),
        (
            "name = \"My farm\"",
            "cluster.name",
            "the invalid character 'M'",
        ),
        (
            long_name.as_str(),
            "cluster.name",
            "the name has 41 characters",
        ),
        (
            "run_dir = \"run\"",
            "cluster.run_dir",
            "start the path with /",
        ),
        (
            long_dir.as_str(),
            "cluster.run_dir",
            "the path has 101 bytes",
        ),
    ] {
        let text = with_machine(&format!("[cluster]\n{line}\n"));
        refused(&text, ProblemKind::OutOfRange, 4, key, &[word]);
    }
    let text = with_machine("[memory]\ndir = \"shm\"\n");
    refused(
        &text,
        ProblemKind::OutOfRange,
        4,
        "memory.dir",
        &["not an absolute path"],
    );
}

#[test]
fn a_machine_may_have_memory_of_its_own_size_or_none() {
    let text = |more: &str| {
        format!(
            "[memory]\nregion_bytes = \"1GiB\"\n[[machine]]\nid = 1\n[[machine]]\nid = 2\n{more}\n"
        )
    };
    let id = |number| MachineId::new(number).unwrap();
    let config = Config::from_str(&text("memory_bytes = 0"), "x.toml").unwrap();
    assert_eq!(
        (config.memory_of(id(1)), config.memory_of(id(2))),
        (4 << 30, 0)
    );
    assert_eq!(config.memory_of(id(9)), 0);
    assert_eq!(config.total_memory(), 4 << 30);
    let storing: Vec<MachineId> = config.storing_machines().map(|one| one.id).collect();
    assert_eq!(storing, [id(1)]);
    let other = Config::from_str(&text("memory_bytes = \"auto\""), "x.toml").unwrap();
    assert_eq!(other.total_memory(), 8 << 30);
    assert_ne!(config.digest(), other.digest(), "all machines must agree");
    let again = Config::from_str(&config.to_toml(), "y.toml").unwrap();
    assert_eq!(again.digest(), config.digest());

    for (more, words) in [
        (
            "memory_bytes = \"1500MiB\"",
            ["not a multiple of memory.region_bytes", "write \"2GiB\""],
        ),
        ("memory_bytes = \"32TiB\"", ["16TiB", "write"]),
        (
            "memory_bytes = \"none\"",
            ["\"none\"", "\"auto\" for memory.per_machine_bytes, 0 for"],
        ),
        ("memory_bytes = -1", ["-1", "expected"]),
    ] {
        let found = problems(&text(more));
        let said = found.first().expect(more).to_string();
        assert!(said.contains("x.toml:7: machine.memory_bytes"), "{said}");
        assert!(
            words.iter().all(|word| said.contains(word)),
            "{words:?} in {said:?}"
        );
    }
    let none = text("memory_bytes = 0").replace("id = 1\n", "id = 1\nmemory_bytes = 0\n");
    let said = problems(&none).first().unwrap().to_string();
    assert!(said.contains("nothing can be stored"), "{said}");
}
