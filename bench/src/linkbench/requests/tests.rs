//! Shares of the requests, of the nodes that they access, and sizes of multigets, as measured with the reference.

use std::collections::HashMap;

use super::super::degree::Degrees;
use super::*;

fn requests(compat: bool, mix: fn(&LinkSpec) -> Mix) -> Requests {
    let properties = super::super::spec::defaults();
    let spec = LinkSpec::from_properties(&properties, compat).unwrap().spec;
    let links = Arc::new(Links::new(&spec, Degrees::default()));
    Requests::new(&spec, links, mix(&spec), (0, 1))
}

fn rng() -> Xoshiro256PlusPlus {
    Xoshiro256PlusPlus::seed_from_u64(1)
}

/// Checks that some shares, in percent, are those of the kinds of many requests.
fn check_shares(requests: &Requests, shares: &[(Kind, f64)]) {
    let (mut rng, mut counts, draws) = (rng(), [0; Kind::ALL.len()], 1_000_000);
    for _ in 0..draws {
        counts[requests.next(&mut rng).kind.index()] += 1;
    }
    for (kind, share) in shares {
        let found = f64::from(counts[kind.index()]) * 100.0 / f64::from(draws);
        let tolerance = 0.1_f64.min(share / 4.0);
        assert!(
            (found - share).abs() < tolerance,
            "{}: {found}",
            kind.name()
        );
    }
}

#[test]
fn kinds_have_their_shares() {
    let linkbench = [
        (Kind::AddLink, 8.99),
        (Kind::UpdateLink, 8.01),
        (Kind::DeleteLink, 2.978),
        (Kind::CountLinks, 4.865),
        (Kind::Multiget, 0.534),
        (Kind::GetList, 50.711),
        (Kind::GetNode, 12.960),
        (Kind::AddNode, 2.567),
        (Kind::UpdateNode, 7.384),
        (Kind::DeleteNode, 1.005),
    ];
    check_shares(&requests(true, linkbench_mix), &linkbench);
    let tao = [
        (Kind::GetList, 40.82),
        (Kind::GetNode, 28.84),
        (Kind::Multiget, 15.67),
        (Kind::CountLinks, 11.68),
        (Kind::GetTimeRange, 2.79),
        (Kind::AddLink, 0.104),
        (Kind::UpdateNode, 0.041),
        (Kind::AddNode, 0.0327),
    ];
    check_shares(&requests(false, |_| tao_mix()), &tao);
}

/// Returns the shares of the accesses of some kinds to the most popular 1, 10, 100, 1,000 and 10,000 nodes.
fn popularity(requests: &Requests, kinds: &[Kind]) -> [f64; 5] {
    let (mut rng, mut counts, mut all) = (rng(), HashMap::<u64, u32>::new(), 0);
    while all < 1_000_000 {
        let request = requests.next(&mut rng);
        if kinds.contains(&request.kind) {
            *counts.entry(request.id1).or_default() += 1;
            all += 1;
        }
    }
    let mut counts: Vec<u32> = counts.into_values().collect();
    counts.sort_by_key(|count| std::cmp::Reverse(*count));
    [1, 10, 100, 1000, 10_000].map(|most| {
        let accesses: u32 = counts.iter().take(most).sum();
        f64::from(accesses) / f64::from(all)
    })
}

#[test]
fn nodes_are_as_popular_as_in_the_reference() {
    let requests = requests(true, linkbench_mix);
    let reads = [Kind::GetList, Kind::CountLinks, Kind::Multiget];
    let writes = [Kind::AddLink, Kind::UpdateLink, Kind::DeleteLink];
    for (kinds, wanted) in [
        (&reads[..], [0.0132, 0.0496, 0.1111, 0.2086, 0.3660]),
        (&writes, [0.0130, 0.0497, 0.1111, 0.2089, 0.3706]),
        (&[Kind::GetNode], [0.0021, 0.0097, 0.0281, 0.0734, 0.1905]),
    ] {
        let found = popularity(&requests, kinds);
        for (found, wanted) in found.into_iter().zip(wanted) {
            // The most popular nodes of a sample are more popular in it than in the whole.
            assert!((found - wanted).abs() < 0.012, "{found}, not {wanted}");
        }
    }
}

#[test]
fn writes_are_correlated_with_the_degree_as_described_and_not_as_in_the_reference() {
    for (compat, wanted) in [(true, 0.995), (false, 0.95)] {
        let requests = requests(compat, linkbench_mix);
        assert_eq!(requests.link_writes.blend, wanted);
        let mut rng = rng();
        let correlated = requests.links.shuffler().permute(0) + 1;
        let writes = (0..300_000)
            .map(|_| requests.next(&mut rng))
            .filter(|it| it.kind == Kind::AddLink);
        let (mut all, mut hub) = (0, 0);
        for write in writes {
            all += 1;
            hub += u32::from(write.id1 == correlated);
        }
        // The node with the most links: (1 - blend) of the first rank's share, 0.74 percent.
        let share = f64::from(hub) / f64::from(all);
        let wanted = (1.0 - wanted) * 0.0074;
        assert!((share - wanted).abs() < 0.0003, "{share}, not {wanted}");
    }
}

#[test]
fn multigets_have_sizes_of_a_geometric_distribution() {
    for (compat, mean, singles) in [(true, 3.62, 0.0), (false, 2.62, 0.382)] {
        let requests = requests(compat, linkbench_mix);
        let (mut rng, mut ids) = (rng(), Vec::new());
        let (mut sizes, mut ones, mut all) = (0, 0, 0);
        while all < 20_000 {
            let mut request = requests.next(&mut rng);
            (request.kind, request.id2) = (Kind::Multiget, rng.next_u64());
            requests.ids(&request, &mut ids);
            let mut sorted = ids.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), ids.len(), "an id occurs twice");
            sizes += ids.len();
            ones += usize::from(ids.len() == 1);
            all += 1;
        }
        let found = sizes as f64 / f64::from(all);
        assert!((found - mean).abs() < 0.06, "{found}, not {mean}");
        let found = ones as f64 / f64::from(all);
        assert!((found - singles).abs() < 0.02, "{found}, not {singles}");
    }
}

#[test]
fn links_that_are_updated_mostly_exist_and_added_ones_mostly_do_not() {
    let requests = requests(false, linkbench_mix);
    let mut rng = rng();
    let mut seen = [(0u32, 0u32); Kind::ALL.len()];
    for _ in 0..400_000 {
        let request = requests.next(&mut rng);
        let loaded = requests.links.of(request.id1, u64::from(request.link_type));
        if loaded > 0 {
            let (all, exist) = &mut seen[request.kind.index()];
            *all += 1;
            *exist += u32::from(request.id2 >= request.id1 && request.id2 < request.id1 + loaded);
        }
    }
    let share = |kind: Kind| {
        let (all, exist) = seen[kind.index()];
        f64::from(exist) / f64::from(all)
    };
    assert!((share(Kind::AddLink) - 0.05).abs() < 0.01);
    // Rounding up makes the share of nodes with few links smaller.
    assert!((0.5..0.9).contains(&share(Kind::UpdateLink)));
}

#[test]
fn clients_with_disjoint_links_change_different_ones() {
    let mut requests = requests(false, linkbench_mix);
    requests.spec.disjoint = true;
    for client in 0..3 {
        requests.client = (client, 3);
        let mut rng = rng();
        for _ in 0..1000 {
            let request = requests.next(&mut rng);
            if request.kind == Kind::AddLink {
                assert_eq!(request.id2 % 3, client);
            }
        }
    }
}
