//! A configuration as bytes: what a store keeps, and what machines send to each other.
//!
//! ```text
//! magic (8) | format (4) | zero (4) | bytes in all (8) | checksum of the rest (8) | the rest
//! rest: change (8) | id (8) | minor (8) | recovered (8) | catalog (8) | seed (8) | manager (2)
//!       | name of the cluster | members (4), each: machine (2) | workers (2) | stores (1) | boot (8) | host | rack
//!       | expiring (4), each: machine (2) | boot (8)
//!       | quorums (4), each: processes (4), each: machine (2) | boot (8)
//!       | regions (4), each: region (4) | last change of the primary (8) | replicas (1),
//!                            each: machine (2) | filling (1) | since (8)
//! ```
//!
//! All numbers are little-endian. A name is its length (1) and its bytes. The checksum is XXH3, seeded with the format, of
//! all that follows it; the fields before it are checked one by one.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::configuration::{
    Configuration, Domain, Invalid, Member, Process, RegionReplicas, Replica, ReplicaState, Version,
};
use crate::ids::{Address, MachineId, RegionId};

/// The greatest number of bytes of a configuration.
pub const MOST_BYTES: usize = 1 << 20;

const MAGIC: [u8; 8] = *b"farmconf";
/// The format that this build writes, and the newest that it reads. It reads three more: 3, which has no quorums; and 2 and 1, which have no
/// seed either. In 1, `expiring` had no boots; no program wrote one that was not empty.
const FORMAT: u32 = 4;
/// The first format with quorums.
const WITH_QUORUMS: u32 = 4;
/// The first format with a seed.
const SEEDED: u32 = 3;
const HEADER_BYTES: usize = 32;

/// Why bytes are not a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// They are something else.
    #[error("it is not a configuration of a farm cluster")]
    NotOne,
    /// A later version of the program wrote them.
    #[error(
        "it has format {0}, and this program reads formats up to {FORMAT}; use the program that wrote it, or a later one"
    )]
    Newer(u32),
    /// The end is missing, or something was added.
    #[error("it has {found} bytes, and {expected} were written")]
    Length {
        /// Bytes that are there.
        found: u64,
        /// Bytes that were written.
        expected: u64,
    },
    /// Bytes have changed since they were written.
    #[error("its checksum is wrong: bytes have changed since it was written")]
    Checksum,
    /// The checksum is right, and the content is impossible: the program that wrote it was wrong.
    #[error("it is not complete, or has an impossible field")]
    Fields,
    /// The parts do not fit together.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

/// Why a configuration cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The parts do not fit together.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// It is too large.
    #[error(
        "it has {bytes} bytes, and may have at most {MOST_BYTES}: {regions} regions are too many; raise memory.region_bytes"
    )]
    TooLarge {
        /// Its bytes.
        bytes: usize,
        /// The number of regions, which take most of the bytes.
        regions: usize,
    },
}

/// Returns the greatest number of bytes of a configuration with this number of members, regions, and replicas of each region.
pub fn most_bytes(members: usize, regions: usize, replicas: usize) -> usize {
    let name = 1 + usize::from(u8::MAX);
    let fixed = HEADER_BYTES + 6 * 8 + 2 + name + 4 * 4;
    let member = 2 + 2 + 1 + 8 + 2 * name;
    let expiring = 2 + 8;
    // Those of the configuration before. More than that if some are not in effect.
    let quorums = 4 + members * (2 + 8);
    let region = 4 + 8 + 1 + replicas * (2 + 1 + 8);
    fixed + members * (member + expiring) + quorums + regions * region
}

impl Configuration {
    /// Returns the bytes of the configuration.
    ///
    /// # Errors
    /// [`EncodeError`].
    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        self.check()?;
        let mut rest = Vec::new();
        let Version { id, minor } = self.version;
        let catalog = self.catalog.map_or(0, Address::to_bits);
        for number in [self.change, id, minor, self.recovered, catalog, self.seed] {
            rest.extend(number.to_le_bytes());
        }
        rest.extend(self.manager.get().to_le_bytes());
        put_name(&mut rest, &self.cluster);
        put_count(&mut rest, self.members.len());
        for member in &self.members {
            rest.extend(member.machine.get().to_le_bytes());
            rest.extend(member.workers.to_le_bytes());
            rest.push(u8::from(member.stores));
            rest.extend(member.boot.to_le_bytes());
            put_name(&mut rest, &member.domain.host);
            put_name(&mut rest, &member.domain.rack);
        }
        put_count(&mut rest, self.expiring.len());
        put_processes(&mut rest, &self.expiring);
        put_count(&mut rest, self.quorums.len());
        for quorum in &self.quorums {
            put_count(&mut rest, quorum.len());
            put_processes(&mut rest, quorum);
        }
        put_count(&mut rest, self.regions.len());
        for region in &self.regions {
            put_region(&mut rest, region);
        }
        let bytes = HEADER_BYTES + rest.len();
        if bytes > MOST_BYTES {
            let regions = self.regions.len();
            return Err(EncodeError::TooLarge { bytes, regions });
        }
        let mut all = Vec::with_capacity(bytes);
        all.extend(MAGIC);
        all.extend(u64::from(FORMAT).to_le_bytes());
        all.extend((bytes as u64).to_le_bytes());
        all.extend(checksum(FORMAT, &rest).to_le_bytes());
        all.extend(rest);
        Ok(all)
    }

    /// Returns the configuration that the bytes are.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut header = Reader(bytes);
        let magic = header.take().ok_or(DecodeError::NotOne)?;
        if magic != MAGIC {
            return Err(DecodeError::NotOne);
        }
        let found = bytes.len() as u64;
        let expected = HEADER_BYTES as u64;
        let short = DecodeError::Length { found, expected };
        let (Some(format), Some(expected), Some(sum)) = (header.u64(), header.u64(), header.u64())
        else {
            return Err(short);
        };
        let format = match u32::try_from(format) {
            Ok(known @ 1..=FORMAT) => known,
            Ok(newer) if newer > FORMAT => return Err(DecodeError::Newer(newer)),
            _ => return Err(DecodeError::NotOne),
        };
        if expected != found {
            return Err(DecodeError::Length { found, expected });
        }
        if sum != checksum(format, header.0) {
            return Err(DecodeError::Checksum);
        }
        let configuration = read(&mut header, format).filter(|_| header.0.is_empty());
        let configuration = configuration.ok_or(DecodeError::Fields)?;
        configuration.check()?;
        Ok(configuration)
    }
}

fn checksum(format: u32, rest: &[u8]) -> u64 {
    xxh3_64_with_seed(rest, format.into())
}

fn put_name(to: &mut Vec<u8>, name: &str) {
    to.push(name.len() as u8);
    to.extend(name.as_bytes());
}

fn put_count(to: &mut Vec<u8>, count: usize) {
    to.extend((count as u32).to_le_bytes());
}

fn put_processes(to: &mut Vec<u8>, processes: &[Process]) {
    for Process { machine, boot } in processes {
        to.extend(machine.get().to_le_bytes());
        to.extend(boot.to_le_bytes());
    }
}

fn put_region(to: &mut Vec<u8>, region: &RegionReplicas) {
    to.extend(region.region.to_bits().to_le_bytes());
    to.extend(region.last_primary_change.to_le_bytes());
    to.push(region.replicas.len() as u8);
    for replica in &region.replicas {
        to.extend(replica.machine.get().to_le_bytes());
        to.push(u8::from(replica.state == ReplicaState::Filling));
        to.extend(replica.since.to_le_bytes());
    }
}

/// Reads everything after the header. `None` if it ends too early, or a field is impossible.
fn read(from: &mut Reader<'_>, format: u32) -> Option<Configuration> {
    let change = from.u64()?;
    let version = Version {
        id: from.u64()?,
        minor: from.u64()?,
    };
    let recovered = from.u64()?;
    let catalog = match from.u64()? {
        0 => None,
        bits => Some(Address::from_bits(bits)?),
    };
    let seed = match format {
        SEEDED.. => from.u64()?,
        _ => 0,
    };
    let manager = from.machine()?;
    let cluster = from.name()?;
    Some(Configuration {
        cluster,
        change,
        version,
        seed,
        members: from.list(read_member)?,
        manager,
        catalog,
        recovered,
        expiring: from.list(|from| match format {
            1 => None,
            _ => from.process(),
        })?,
        quorums: match format {
            WITH_QUORUMS.. => from.list(|from| from.list(Reader::process))?,
            _ => Vec::new(),
        },
        regions: from.list(read_region)?,
    })
}

fn read_member(from: &mut Reader<'_>) -> Option<Member> {
    Some(Member {
        machine: from.machine()?,
        workers: u16::from_le_bytes(from.take()?),
        stores: from.flag()?,
        boot: from.u64()?,
        domain: Domain {
            host: from.name()?,
            rack: from.name()?,
        },
    })
}

fn read_region(from: &mut Reader<'_>) -> Option<RegionReplicas> {
    let region = RegionId::from_bits(u32::from_le_bytes(from.take()?))?;
    let last_primary_change = from.u64()?;
    let [count] = from.take()?;
    let replicas = (0..count).map(|_| read_replica(from));
    Some(RegionReplicas {
        region,
        replicas: replicas.collect::<Option<_>>()?,
        last_primary_change,
    })
}

fn read_replica(from: &mut Reader<'_>) -> Option<Replica> {
    let machine = from.machine()?;
    let state = match from.flag()? {
        false => ReplicaState::Full,
        true => ReplicaState::Filling,
    };
    let since = from.u64()?;
    Some(Replica {
        machine,
        since,
        state,
    })
}

/// The bytes that are not read yet.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.take()? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }

    fn machine(&mut self) -> Option<MachineId> {
        MachineId::new(u16::from_le_bytes(self.take()?))
    }

    pub(super) fn process(&mut self) -> Option<Process> {
        let (machine, boot) = (self.machine()?, self.u64()?);
        Some(Process { machine, boot })
    }

    fn name(&mut self) -> Option<String> {
        let [bytes] = self.take()?;
        let (name, rest) = self.0.split_at_checked(bytes.into())?;
        self.0 = rest;
        std::str::from_utf8(name).ok().map(str::to_owned)
    }

    fn list<T>(&mut self, mut one: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = u32::from_le_bytes(self.take()?);
        // The list grows with what is read, so a wrong count allocates nothing.
        (0..count).map(|_| one(self)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::configuration::testing::{configuration, machine, region_of};
    use super::*;

    /// Returns a configuration in which every field has a value of its own.
    fn full() -> Configuration {
        let mut full = configuration("cluster", &[1, 2, 7]);
        full.change = 0x0102_0304_0506_0708;
        full.version = Version { id: 9, minor: 11 };
        full.members[2].stores = false;
        full.members[1].domain.rack = "räck".into();
        full.manager = machine(2);
        full.catalog = Address::from_bits(u64::from(region_of(5).region.to_bits()) << 32 | 128);
        full.recovered = 8;
        full.expiring = [5, 3]
            .map(|id| Process {
                machine: machine(id),
                boot: 0x0a0b_0c0d_0e0f_0001 + u64::from(id),
            })
            .to_vec();
        let [five, three] = full.expiring[..] else {
            panic!("two")
        };
        full.quorums = vec![vec![five], vec![three, five]];
        full.regions = vec![region_of(5), region_of(6)];
        full.regions[1].replicas.push(Replica {
            machine: machine(2),
            since: 4,
            state: ReplicaState::Filling,
        });
        full.regions[1].last_primary_change = 3;
        full
    }

    #[test]
    fn every_field_is_kept() {
        let full = full();
        assert!(full.catalog.is_some());
        let bytes = full.encode().unwrap();
        assert_eq!(Configuration::decode(&bytes), Ok(full));
        // The bytes of an existing store must stay readable.
        assert_eq!(
            xxhash_rust::xxh3::xxh3_64(&bytes),
            FULL,
            "the format has changed: raise FORMAT"
        );
    }

    #[test]
    fn the_formats_before_are_read() {
        for format in [1, 2, 3] {
            let mut before = full();
            before.quorums.clear();
            if format == 1 {
                before.expiring.clear();
            }
            let mut bytes = before.encode().unwrap();
            // They had no quorums. The number of these is before the regions.
            let mut regions = vec![0; 4];
            let all = before.regions.iter();
            all.for_each(|region| put_region(&mut regions, region));
            let at = bytes.len() - regions.len();
            bytes.drain(at - 4..at);
            if format < SEEDED {
                // It follows five numbers.
                bytes.drain(HEADER_BYTES + 5 * 8..HEADER_BYTES + 6 * 8);
                before.seed = 0;
            }
            let length = bytes.len() as u64;
            bytes[8..16].copy_from_slice(&u64::from(format).to_le_bytes());
            bytes[16..24].copy_from_slice(&length.to_le_bytes());
            let sum = checksum(format, &bytes[HEADER_BYTES..]);
            bytes[24..32].copy_from_slice(&sum.to_le_bytes());
            assert_eq!(Configuration::decode(&bytes), Ok(before));
        }
    }

    #[test]
    fn the_greatest_number_of_bytes_is_that_of_the_longest_names() {
        let mut largest = configuration(&"x".repeat(255), &[1, 2, 3]);
        for member in &mut largest.members {
            (member.domain.host, member.domain.rack) = ("h".repeat(255), "r".repeat(255));
        }
        largest.quorums = vec![largest.storing().collect()];
        largest.regions = vec![region_of(5), region_of(6)];
        let replicas = largest.regions[0].replicas.len();
        let most = most_bytes(3, 2, replicas);
        let bytes = largest.encode().unwrap().len();
        assert_eq!(bytes, most - 3 * 10, "no process expires");
    }

    /// Hash of the bytes of [`full`] in format 4.
    const FULL: u64 = 6_969_660_167_593_378_403;

    #[test]
    fn every_flipped_bit_and_every_other_length_is_refused() {
        let bytes = full().encode().unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Configuration::decode(&flipped).is_err(), "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert!(
                Configuration::decode(&bytes[..length]).is_err(),
                "{length} bytes"
            );
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(
            Configuration::decode(&longer),
            Err(DecodeError::Length {
                found: bytes.len() as u64 + 1,
                expected: bytes.len() as u64
            })
        );
    }

    #[test]
    fn what_does_not_fit_is_refused_when_it_is_written_and_when_it_is_read() {
        let mut wrong = full();
        wrong.manager = machine(7);
        assert_eq!(
            wrong.encode(),
            Err(EncodeError::Invalid(Invalid::Manager(machine(7))))
        );
        let mut many = full();
        many.regions = (100..50_000).map(region_of).collect();
        many.regions.sort_by_key(|one| one.region);
        let error = many
            .encode()
            .map(|bytes| bytes.len())
            .unwrap_err()
            .to_string();
        assert!(error.contains("49900 regions are too many"), "{error}");
        // The bytes of an impossible configuration, with the right checksum: the manager is changed.
        let bytes = full().encode().unwrap();
        let with_rest = |change: &dyn Fn(&mut [u8])| {
            let mut bytes = bytes.clone();
            change(&mut bytes[HEADER_BYTES..]);
            let sum = checksum(FORMAT, &bytes[HEADER_BYTES..]);
            bytes[24..32].copy_from_slice(&sum.to_le_bytes());
            Configuration::decode(&bytes)
        };
        assert_eq!(
            with_rest(&|rest| rest[48] = 7),
            Err(Invalid::Manager(machine(7)).into())
        );
        assert_eq!(with_rest(&|rest| rest[48] = 0), Err(DecodeError::Fields));
        assert_eq!(with_rest(&|_| ()), Ok(full()));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(rest in proptest::collection::vec(any::<u8>(), 0..300), whole: bool) {
            let mut bytes = full().encode().unwrap();
            match whole {
                true => bytes = rest,
                // Past the checksum.
                false => {
                    bytes.truncate(HEADER_BYTES);
                    bytes.extend(rest);
                    let length = bytes.len() as u64;
                    let sum = checksum(FORMAT, &bytes[HEADER_BYTES..]);
                    bytes[16..24].copy_from_slice(&length.to_le_bytes());
                    bytes[24..32].copy_from_slice(&sum.to_le_bytes());
                }
            }
            let _ = Configuration::decode(&bytes);
        }
    }
}
