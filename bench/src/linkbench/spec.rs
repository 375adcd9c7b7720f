//! The properties of LinkBench, checked. Their names are those of the reference.

use std::path::PathBuf;

use serde::Serialize;

use crate::properties::{Properties, PropertyError, Reader, Remark, Vocabulary};

/// Maximum number of types of links.
const MAX_LINK_TYPES: u64 = 100;

/// Longest data of a link, in bytes.
pub const MAX_LINK_BYTES: usize = 254;
/// Longest data of a node, in bytes.
pub const MAX_NODE_BYTES: usize = farm_graph::MAX_NODE_BYTES;

/// Maximum number of ids of a multiget.
pub const MAX_MULTIGET: usize = 1000;

/// The default properties: the workload of the reference with a million nodes.
const DEFAULTS: &str = include_str!("../../../config/linkbench/facebook.properties");

/// The kinds of requests, with the properties that set their shares. The reference compares a random number with the sum
/// of shares in this order.
pub(crate) const KINDS: [&str; 10] = [
    "addlink",
    "deletelink",
    "updatelink",
    "countlink",
    "getlink",
    "getlinklist",
    "addnode",
    "updatenode",
    "deletenode",
    "getnode",
];

/// How ids are chosen by their rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Zipf's distribution of this shape, from 0 to below 1.
    Zipf(f64),
    /// All ranks equally often.
    Uniform,
}

/// How links are read or written: a part of the accesses has another distribution, which is not correlated with the
/// numbers of links of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LinkAccess {
    /// The distribution that is correlated: the ranks are those of the out-degrees.
    pub correlated: Access,
    /// The distribution that is not correlated.
    pub uncorrelated: Access,
    /// Percentage of accesses that are not correlated.
    pub blend: f64,
}

/// The bytes of links or nodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Payload {
    /// Median of the lengths, in bytes.
    pub median: f64,
    /// The least byte.
    pub first_byte: u8,
    /// The byte after the greatest one.
    pub end_byte: u8,
    /// Share of the chunks that are new and not copied.
    pub uniqueness: f64,
    /// Length of the chunks.
    pub chunk: usize,
}

/// The numbers of ids of multigets: a geometric distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Multiget {
    /// The least number.
    pub min: u64,
    /// The number after the greatest one.
    pub end: u64,
    /// Probability that there is no further id.
    pub probability: f64,
}

/// A graph and the requests on it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkSpec {
    /// `startid1`: the first id.
    pub first_id: u64,
    /// `maxid1`: the id after the last one.
    pub end_id: u64,
    /// `link_type_count`.
    pub link_types: u64,
    /// `randomid2max`: bound of random ids of the other nodes; 0 for ids from the own one on.
    pub random_id2: u64,
    /// `id2gen_config`: whether requesters change different links.
    pub disjoint: bool,
    /// `link_add_datagen_*`: bytes of new links.
    pub new_link: Payload,
    /// `link_up_datagen_*`: bytes of links that are updated.
    pub updated_link: Payload,
    /// `node_add_datagen_*`: bytes of new nodes.
    pub new_node: Payload,
    /// `node_up_datagen_*`: bytes of nodes that are updated.
    pub updated_node: Payload,
    /// Shares of the requests, in percent: `addlink`, `deletelink`, `updatelink`, `countlink`, `getlink`, `getlinklist`,
    /// `addnode`, `updatenode`, `deletenode`, `getnode`.
    pub mix: [f64; KINDS.len()],
    /// `getlinklist_history`: percentage of the list requests that ask for older links of a long list.
    pub history: f64,
    /// `read_*`: accesses that read links.
    pub link_reads: LinkAccess,
    /// `write_*`: accesses that write links.
    pub link_writes: LinkAccess,
    /// `node_read_*`.
    pub node_reads: Access,
    /// `node_update_*`.
    pub node_updates: Access,
    /// `node_delete_*`.
    pub node_deletes: Access,
    /// `link_multiget_dist_*`.
    pub multiget: Multiget,
    /// Whether oddities of the reference are reproduced.
    pub compat: bool,
}

/// Bounds of the requests, and where the out-degrees are from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkBounds {
    /// `data_file`: a `Distribution.dat`.
    pub data_file: Option<PathBuf>,
    /// `requesters`: number of requests in flight.
    pub requesters: Option<u64>,
    /// `requests`: number of requests of each requester.
    pub requests: Option<u64>,
    /// `requestrate`: requests per second of each requester.
    pub request_rate: Option<f64>,
    /// `maxtime`, in seconds.
    pub max_time: Option<u64>,
    /// `warmup_time`, in seconds.
    pub warmup: Option<u64>,
    /// `load_random_seed`.
    pub load_seed: Option<u64>,
    /// `request_random_seed`.
    pub request_seed: Option<u64>,
}

/// Checked properties.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// The graph and the requests.
    pub spec: LinkSpec,
    /// The bounds of the requests.
    pub bounds: LinkBounds,
    /// Warnings and notes, in the order of the keys.
    pub remarks: Vec<Remark>,
}

impl Default for LinkSpec {
    fn default() -> Self {
        let parsed = LinkSpec::from_properties(&defaults(), false);
        parsed.expect("the built-in properties are valid").spec
    }
}

/// Returns the default properties, which further files and `-D` settings override.
pub fn defaults() -> Properties {
    let mut properties = Properties::new("-D");
    let name = "config/linkbench/facebook.properties";
    let read = properties.load_bytes(name, DEFAULTS.as_bytes());
    read.expect("the built-in properties are valid");
    properties
}

/// The keys that have no effect.
const VOCABULARY: Vocabulary = Vocabulary(&[
    (
        "links and nodes are stored in the graph of the cluster that is started",
        "linkstore nodestore host user password dbid port linktable nodetable counttable mysql_* hbase* phase",
    ),
    (
        "every worker of the cluster loads a part of the ids",
        "loaders loader_chunk_size generate_nodes=true",
    ),
    (
        "progress is shown on a terminal, and latencies are recorded in histograms",
        "debuglevel displayfreq progressfreq maxsamples req_*",
    ),
    (
        "a failed request ends the run with an error",
        "max_failed_requests",
    ),
    (
        "the out-degrees are those of a distribution",
        "nlinks_config nlinks_default",
    ),
    (
        "the function has no other parameter",
        "read_config write_config read_uncorr_config write_uncorr_config=1",
    ),
]);

impl LinkSpec {
    /// Checks properties. `compat`: reproduce the oddities of the reference.
    ///
    /// # Errors
    /// The first invalid setting.
    pub fn from_properties(properties: &Properties, compat: bool) -> Result<Parsed, PropertyError> {
        let reader = Reader::new(properties);
        let first_id = reader.count("startid1")?.unwrap_or(1);
        let end_id = reader.count("maxid1")?.unwrap_or(1_000_001);
        check_ids(&reader, first_id, end_id)?;
        check_functions(&reader)?;
        let link_reads = link_access(
            &reader,
            ["read_function", "read_shape"],
            [
                "read_uncorr_function",
                "read_uncorr_shape",
                "read_uncorr_blend",
            ],
        )?;
        let mut link_writes = link_access(
            &reader,
            ["write_function", "write_shape"],
            [
                "write_uncorr_function",
                "write_uncorr_shape",
                "write_uncorr_blend",
            ],
        )?;
        if compat {
            // The reference reads the properties of reads for this part of the writes, too.
            link_writes.uncorrelated = link_reads.uncorrelated;
            link_writes.blend = link_reads.blend;
        }
        let spec = LinkSpec {
            first_id,
            end_id,
            link_types: reader
                .number(
                    "link_type_count",
                    "a whole number from 1 to 100",
                    |count: &u64| (1..=MAX_LINK_TYPES).contains(count),
                )?
                .unwrap_or(2),
            random_id2: reader.count("randomid2max")?.unwrap_or(0),
            disjoint: reader.one_of("id2gen_config", &["0", "1"])? == Some(1),
            new_link: payload(&reader, "link_datasize", LINK_ADD, compat)?,
            updated_link: payload(&reader, "link_datasize", LINK_UP, compat)?,
            new_node: payload(&reader, "node_datasize", NODE_ADD, compat)?,
            updated_node: payload(&reader, "node_datasize", NODE_UP, compat)?,
            mix: mix(&reader)?,
            history: percent(&reader, "getlinklist_history")?.unwrap_or(0.0),
            link_reads,
            link_writes,
            node_reads: access(&reader, "node_read_function", "node_read_shape")?,
            node_updates: access(&reader, "node_update_function", "node_update_shape")?,
            node_deletes: access(&reader, "node_delete_function", "node_delete_shape")?,
            multiget: multiget(&reader)?,
            compat,
        };
        let bounds = bounds(&reader)?;
        let mut remarks = reader.remarks(VOCABULARY, |_, _| None);
        remarks.extend(cut_off("link_datasize", spec.new_link, MAX_LINK_BYTES));
        remarks.extend(cut_off("node_datasize", spec.new_node, MAX_NODE_BYTES));
        Ok(Parsed {
            spec,
            bounds,
            remarks,
        })
    }

    /// Returns the number of nodes that are loaded.
    pub fn nodes(&self) -> u64 {
        self.end_id - self.first_id
    }
}

fn check_ids(reader: &Reader<'_>, first: u64, end: u64) -> Result<(), PropertyError> {
    let (nodes, setting) = (end.saturating_sub(first), reader.get("maxid1"));
    if first > 0 && (1..1 << 41).contains(&nodes) && end < 1 << 62 {
        return Ok(());
    }
    let place = setting.map_or_else(String::new, |it| format!(" ({})", it.origin));
    Err(PropertyError::Invalid(format!(
        "startid1 = {first} and maxid1 = {end}{place} are not the first id and the id after the last one; startid1 is at \
         least 1, and maxid1 is greater, by at most 2^41"
    )))
}

/// Refuses functions that are not supported.
fn check_functions(reader: &Reader<'_>) -> Result<(), PropertyError> {
    reader.one_of("nlinks_func", &["real"])?;
    for key in [
        "link_add_datagen",
        "link_up_datagen",
        "node_add_datagen",
        "node_up_datagen",
    ] {
        class(reader, key, &["MotifDataGenerator"])?;
    }
    class(reader, "link_multiget_dist", &["GeometricDistribution"])?;
    Ok(())
}

/// Returns the index in `names` of a class of the reference, with or without its package.
fn class(
    reader: &Reader<'_>,
    key: &'static str,
    names: &[&str],
) -> Result<Option<usize>, PropertyError> {
    let Some(setting) = reader.get(key) else {
        return Ok(None);
    };
    let name = setting.value.rsplit('.').next().unwrap_or_default();
    let found = names
        .iter()
        .position(|known| name.eq_ignore_ascii_case(known));
    match found {
        Some(found) => Ok(Some(found)),
        None => {
            let wanted = format!("{}, which is supported", names.join(" or "));
            Err(PropertyError::bad_value(key, setting, &wanted))
        }
    }
}

fn access(
    reader: &Reader<'_>,
    function: &'static str,
    shape: &'static str,
) -> Result<Access, PropertyError> {
    let names = ["ZipfDistribution", "UniformDistribution"];
    let is_zipf = class(reader, function, &names)? != Some(1);
    let wanted = "a number from 0 to below 1";
    let shape = reader.number(shape, wanted, |shape: &f64| (0.0..1.0).contains(shape))?;
    Ok(match is_zipf {
        true => Access::Zipf(shape.unwrap_or(0.8)),
        false => Access::Uniform,
    })
}

fn link_access(
    reader: &Reader<'_>,
    correlated: [&'static str; 2],
    [function, shape, blend]: [&'static str; 3],
) -> Result<LinkAccess, PropertyError> {
    Ok(LinkAccess {
        correlated: access(reader, correlated[0], correlated[1])?,
        uncorrelated: access(reader, function, shape)?,
        blend: percent(reader, blend)?.unwrap_or(0.0),
    })
}

fn percent(reader: &Reader<'_>, key: &'static str) -> Result<Option<f64>, PropertyError> {
    reader.number(key, "a percentage from 0 to 100", |percent: &f64| {
        (0.0..=100.0).contains(percent)
    })
}

const LINK_ADD: [&str; 4] = [
    "link_add_datagen_startbyte",
    "link_add_datagen_endbyte",
    "link_add_datagen_uniqueness",
    "link_add_datagen_motif_length",
];
const LINK_UP: [&str; 4] = [
    "link_up_datagen_startbyte",
    "link_up_datagen_endbyte",
    "link_up_datagen_uniqueness",
    "link_up_datagen_motif_length",
];
const NODE_ADD: [&str; 4] = [
    "node_add_datagen_startbyte",
    "node_add_datagen_endbyte",
    "node_add_datagen_uniqueness",
    "node_add_datagen_motif_length",
];
const NODE_UP: [&str; 4] = [
    "node_up_datagen_startbyte",
    "node_up_datagen_endbyte",
    "node_up_datagen_uniqueness",
    "node_up_datagen_motif_length",
];

fn payload(
    reader: &Reader<'_>,
    size: &'static str,
    [first, end, uniqueness, chunk]: [&'static str; 4],
    compat: bool,
) -> Result<Payload, PropertyError> {
    let positive = |number: &f64| *number > 0.0 && number.is_finite();
    let byte = |key| reader.number(key, "a byte, 0 to 255", |_: &u8| true);
    let first_byte = byte(first)?.unwrap_or(0);
    let end_byte = byte(end)?.unwrap_or(255);
    if first_byte >= end_byte {
        return Err(PropertyError::Invalid(format!(
            "{first} = {first_byte} is not below {end} = {end_byte}"
        )));
    }
    let wanted = "a length from 1 to 512";
    let length = reader.number(chunk, wanted, |chunk: &usize| (1..=512).contains(chunk))?;
    let median = reader.number(size, "a positive number of bytes", positive)?;
    Ok(Payload {
        median: median.unwrap_or(128.0),
        first_byte,
        end_byte,
        uniqueness: reader.fraction(uniqueness)?.unwrap_or(1.0),
        // The reference does not read the length.
        chunk: if compat { 128 } else { length.unwrap_or(128) },
    })
}

/// Returns a warning if the median of a length is more than the most.
fn cut_off(key: &str, payload: Payload, most: usize) -> Option<Remark> {
    let median = payload.median;
    (median > most as f64).then(|| Remark {
        is_warning: true,
        text: format!(
            "{key} = {median} is the median of the lengths, but data is cut off at {most} bytes"
        ),
    })
}

fn mix(reader: &Reader<'_>) -> Result<[f64; KINDS.len()], PropertyError> {
    let mut mix = [0.0; KINDS.len()];
    for (share, kind) in mix.iter_mut().zip(KINDS) {
        *share = percent(reader, kind)?.unwrap_or(0.0);
    }
    let sum: f64 = mix.iter().sum();
    if (sum - 100.0).abs() > 1e-3 {
        let shares = KINDS
            .iter()
            .zip(mix)
            .map(|(kind, share)| format!("{kind} {share}"));
        let shares: Vec<String> = shares.collect();
        return Err(PropertyError::Invalid(format!(
            "the shares of the requests add up to {sum} percent ({}); they have to add up to 100",
            shares.join(", ")
        )));
    }
    Ok(mix)
}

fn multiget(reader: &Reader<'_>) -> Result<Multiget, PropertyError> {
    let wanted = format!("a whole number from 1 to {MAX_MULTIGET}");
    let number = |key| {
        reader.number(key, &wanted, |count: &u64| {
            (1..=MAX_MULTIGET as u64).contains(count)
        })
    };
    let min = number("link_multiget_dist_min")?.unwrap_or(1);
    let end = number("link_multiget_dist_max")?.unwrap_or(128);
    let probability = reader.number(
        "link_multiget_dist_prob",
        "a probability above 0 and at most 1",
        |share: &f64| *share > 0.0 && *share <= 1.0,
    )?;
    if min >= end {
        return Err(PropertyError::Invalid(format!(
            "link_multiget_dist_min = {min} is not below link_multiget_dist_max = {end}"
        )));
    }
    Ok(Multiget {
        min,
        end,
        probability: probability.unwrap_or(0.382),
    })
}

fn bounds(reader: &Reader<'_>) -> Result<LinkBounds, PropertyError> {
    let rate = reader.number(
        "requestrate",
        "a number of requests per second",
        |rate: &f64| rate.is_finite(),
    )?;
    Ok(LinkBounds {
        data_file: reader
            .get("data_file")
            .map(|setting| PathBuf::from(&setting.value)),
        requesters: reader.positive("requesters")?,
        requests: reader.positive("requests")?,
        // As in the reference, other numbers mean no limit.
        request_rate: rate.filter(|rate| *rate > 0.0),
        max_time: reader.positive("maxtime")?,
        warmup: reader.count("warmup_time")?,
        load_seed: reader.count("load_random_seed")?,
        request_seed: reader.count("request_random_seed")?,
    })
}
