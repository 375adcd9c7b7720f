//! `farm bench alloc`: the memory that the allocator wastes and the time that it takes.
//!
//! Waste is computed for all size classes ([`fragmentation`], `FaRM'14 §3.3`). Times are measured: for each object
//! size, the benchmark reserves objects until a working set is live, replaces objects at random, and releases all of
//! them. It reads the clock once per [`BATCH`] objects and reports the median batch, so that a busy host has little
//! effect. The slab allocator accesses its own maps and not the objects. The benchmark does not access the objects
//! either, so that the regions' memory stays untouched.

use std::fmt;
use std::time::Instant;

use anyhow::{Context, Result};
use farm_core::alloc::{
    AllocError, BlockAllocator, BlockConfig, ClassFragmentation, Fragmentation, Reserved,
    SizeClass, Slab, choose_region_id, class_for_payload, fragmentation,
};
use farm_core::ids::{MachineId, RegionId, WorkerId};
use farm_core::mem::{Mapping, Memory};
use farm_core::region::placement::Placement;
use rand::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use serde::Serialize;

use crate::report::{Figure, Measured};
use crate::text::{cells, headings, table};

/// Number of objects between two readings of the clock.
pub const BATCH: usize = 4096;

/// What to measure.
#[derive(Clone, Debug)]
pub struct AllocOptions {
    /// Bytes in a block.
    pub block_bytes: usize,
    /// Bytes in a region.
    pub region_bytes: usize,
    /// Bytes of data in an object; one measurement for each size.
    pub payloads: Vec<usize>,
    /// Number of live objects during a measurement of one size, unless they would take more than `live_bytes`. With
    /// mixed sizes, a fifth of this number.
    pub objects: usize,
    /// Maximum total size of the live objects during a measurement of one size, in bytes.
    pub live_bytes: usize,
    /// Replacements (one release and one reserve) per measurement.
    pub replacements: usize,
    /// Seed of all random choices.
    pub seed: u64,
}

impl Default for AllocOptions {
    fn default() -> Self {
        Self {
            block_bytes: 1 << 20,
            region_bytes: 256 << 20,
            payloads: vec![16, 48, 100, 256, 1000, 4096, 65536],
            objects: 100_000,
            live_bytes: 256 << 20,
            replacements: 2_000_000,
            seed: 1,
        }
    }
}

/// Times for objects of one size, in nanoseconds per object. Except for `fill_ns`, each is that of the median batch.
#[derive(Clone, Debug, Serialize)]
pub struct AllocTiming {
    /// Bytes of data in each object.
    pub payload_bytes: usize,
    /// Bytes of an object.
    pub object_bytes: usize,
    /// Number of live objects.
    pub objects: usize,
    /// Time to reserve an object of the working set. It is the mean over all objects, so that it includes the
    /// allocation of blocks and the creation of regions.
    pub fill_ns: f64,
    /// Time to release a random object and reserve another one.
    pub replace_ns: f64,
    /// As `replace_ns`, with the address of a random live object as a hint for the reservation.
    pub replace_near_ns: f64,
    /// Share of the reservations with a hint whose object is in the same block as the hint.
    pub near_in_block: f64,
    /// Time to release an object of the working set.
    pub drain_ns: f64,
}

/// Objects with uniformly distributed sizes, which are replaced at random.
#[derive(Clone, Debug, Serialize)]
pub struct MixedSizes {
    /// Maximum number of bytes of data in an object; the minimum is 1.
    pub most_payload_bytes: usize,
    /// Number of live objects.
    pub objects: usize,
    /// Time to release a random object and reserve another one of a random size, in nanoseconds.
    pub replace_ns: f64,
    /// Bytes of data in live objects.
    pub payload_bytes: u64,
    /// Bytes of live objects.
    pub object_bytes: u64,
    /// Bytes of the blocks that are reserved for objects.
    pub reserved_bytes: u64,
    /// Share of the objects' data capacity that contains no data.
    pub internal_fragmentation: f64,
    /// Share of the blocks' bytes that belong to no live object.
    pub external_fragmentation: f64,
}

/// Results of `farm bench alloc`.
#[derive(Clone, Debug, Serialize)]
pub struct AllocReport {
    /// Waste of memory, computed and not measured.
    pub fragmentation: Fragmentation,
    /// Times for each object size.
    pub timings: Vec<AllocTiming>,
    /// Time and waste with objects of many sizes at once.
    pub mixed: MixedSizes,
}

/// Computes the waste and measures the times.
///
/// # Errors
/// If the sizes are impossible, or memory runs out.
pub fn run(options: &AllocOptions) -> Result<AllocReport> {
    let &AllocOptions {
        block_bytes,
        region_bytes,
        ..
    } = options;
    let fragmentation = fragmentation(block_bytes, region_bytes).with_context(|| {
        format!(
            "blocks of {block_bytes} bytes are not possible in regions of {region_bytes} bytes: a block must be a \
             power of two of at least 4 KiB; a region must have room for its block table and a block, and must not \
             exceed the maximum region size"
        )
    })?;
    let timings = options
        .payloads
        .iter()
        .map(|payload| measure_size(options, *payload))
        .collect::<Result<_, _>>()?;
    Ok(AllocReport {
        fragmentation,
        timings,
        mixed: measure_mixed(options)?,
    })
}

/// The allocators of a worker in a cluster of three machines, with anonymous memory of this process.
struct Machine {
    blocks: BlockAllocator,
    slab: Slab,
    rng: Xoshiro256PlusPlus,
}

impl Machine {
    fn new(options: &AllocOptions) -> Self {
        let config = BlockConfig {
            block_bytes: options.block_bytes,
            region_bytes: options.region_bytes,
            per_machine_bytes: u64::MAX,
            seed: options.seed,
        };
        let machines: Vec<_> = (1..=3).filter_map(MachineId::new).collect();
        let placement = Placement::new(&machines);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(options.seed);
        let mut made: Vec<RegionId> = Vec::new();
        let blocks = BlockAllocator::new(config, move |near| {
            let taken = |id: RegionId| made.contains(&id);
            let id = choose_region_id(&placement, machines[0], near, taken, &mut rng).ok_or_else(
                || {
                    AllocError::NoRegion(
                        "no virtual ring has a free position for another region".into(),
                    )
                },
            )?;
            let memory = Mapping::anonymous(config.region_bytes)
                .map_err(|error| AllocError::NoRegion(error.to_string()))?;
            made.push(id);
            Ok((id, Memory::of(memory)))
        });
        let slab = Slab::new(WorkerId::FIRST, blocks.changes());
        let rng = Xoshiro256PlusPlus::seed_from_u64(options.seed ^ 1);
        Self { blocks, slab, rng }
    }

    /// Draws random indices less than `below`. The draws are made before the clock runs.
    fn draw(&mut self, count: usize, below: usize) -> Vec<u32> {
        (0..count)
            .map(|_| self.rng.random_range(0..below as u32))
            .collect()
    }
}

fn measure_size(options: &AllocOptions, payload_bytes: usize) -> Result<AllocTiming> {
    let class = class_for_payload(payload_bytes)?;
    let objects = options
        .objects
        .min(options.live_bytes / class.object_bytes())
        .max(1);
    let mut machine = Machine::new(options);
    let victims = machine.draw(options.replacements, objects);
    let hints = machine.draw(options.replacements, objects);
    let Machine { blocks, slab, .. } = &mut machine;

    let start = Instant::now();
    let mut live = Vec::with_capacity(objects);
    for _ in 0..objects {
        live.push(slab.reserve(class, None, blocks)?);
    }
    let fill_ns = start.elapsed().as_nanos() as f64 / objects as f64;

    let replace_ns = median_ns(&victims, |victim| {
        let reserved = &mut live[*victim as usize];
        slab.release(reserved.address)?;
        *reserved = slab.reserve(class, None, blocks)?;
        Ok(())
    })?;
    let pairs: Vec<_> = victims.into_iter().zip(hints).collect();
    let replace_near_ns = median_ns(&pairs, |(victim, hint)| {
        let hint = live[*hint as usize].address;
        let reserved = &mut live[*victim as usize];
        slab.release(reserved.address)?;
        *reserved = slab.reserve(class, Some(hint), blocks)?;
        Ok(())
    })?;
    let near_in_block = share_in_block(&mut machine, options, class, &mut live)?;

    let drain_ns = median_ns(&live, |reserved| {
        Ok(machine.slab.release(reserved.address).map(|_| ())?)
    })?;
    Ok(AllocTiming {
        payload_bytes,
        object_bytes: class.object_bytes(),
        objects,
        fill_ns,
        replace_ns,
        replace_near_ns,
        near_in_block,
        drain_ns,
    })
}

/// Releases 1 object in 16, and reserves as many objects, each with the address of a random live object as a hint.
/// Returns the share of these objects that are in the same block as their hint.
fn share_in_block(
    machine: &mut Machine,
    options: &AllocOptions,
    class: SizeClass,
    live: &mut [Reserved],
) -> Result<f64> {
    let count = (live.len() / 16).max(1);
    for reserved in &live[..count] {
        machine.slab.release(reserved.address)?;
    }
    let hints = machine.draw(count, live.len() - count + 1);
    let mut in_block = 0;
    for (i, hint) in hints.into_iter().enumerate() {
        let hint = live[(count + hint as usize).min(live.len() - 1)].address;
        let reserved = machine
            .slab
            .reserve(class, Some(hint), &mut machine.blocks)?;
        let block = |offset: u32| offset as usize / options.block_bytes;
        in_block += usize::from(
            reserved.address.region() == hint.region()
                && block(reserved.address.offset()) == block(hint.offset()),
        );
        live[i] = reserved;
    }
    Ok(in_block as f64 / count as f64)
}

/// Measures objects with 1 byte to 16 KiB of data (at most half a block), a fifth of the configured number of objects.
fn measure_mixed(options: &AllocOptions) -> Result<MixedSizes> {
    let most_payload_bytes = (16 << 10).min(options.block_bytes / 2);
    let objects = (options.objects / 5).max(1);
    let mut machine = Machine::new(options);
    let payloads = machine.draw(options.replacements + objects, most_payload_bytes);
    let victims = machine.draw(options.replacements, objects);
    let Machine { blocks, slab, .. } = &mut machine;
    let mut next = payloads.into_iter().map(|payload| payload as usize + 1);

    let mut live = Vec::with_capacity(objects);
    for payload in next.by_ref().take(objects) {
        live.push((
            payload,
            slab.reserve(class_for_payload(payload)?, None, blocks)?,
        ));
    }
    let pairs: Vec<_> = victims.into_iter().zip(next).collect();
    let replace_ns = median_ns(&pairs, |(victim, payload)| {
        let (old_payload, reserved) = &mut live[*victim as usize];
        slab.release(reserved.address)?;
        *reserved = slab.reserve(class_for_payload(*payload)?, None, blocks)?;
        *old_payload = *payload;
        Ok(())
    })?;

    let payload_bytes: u64 = live.iter().map(|(payload, _)| *payload as u64).sum();
    let (mut capacity, mut object_bytes, mut reserved_bytes) = (0, 0, 0);
    for class in SizeClass::all() {
        let usage = slab.usage(class);
        capacity += usage.live * class.payload_capacity() as u64;
        object_bytes += usage.live * class.object_bytes() as u64;
        reserved_bytes += usage.reserved_bytes;
    }
    Ok(MixedSizes {
        most_payload_bytes,
        objects,
        replace_ns,
        payload_bytes,
        object_bytes,
        reserved_bytes,
        internal_fragmentation: 1.0 - payload_bytes as f64 / capacity as f64,
        external_fragmentation: 1.0 - object_bytes as f64 / reserved_bytes as f64,
    })
}

/// Returns the nanoseconds that `each` takes per item in the median batch.
fn median_ns<T>(items: &[T], mut each: impl FnMut(&T) -> Result<()>) -> Result<f64> {
    let mut batches = Vec::with_capacity(items.len().div_ceil(BATCH));
    for batch in items.chunks(BATCH) {
        let start = Instant::now();
        batch.iter().try_for_each(&mut each)?;
        batches.push(start.elapsed().as_nanos() as f64 / batch.len() as f64);
    }
    batches.sort_unstable_by(f64::total_cmp);
    Ok(batches.get(batches.len() / 2).copied().unwrap_or(0.0))
}

impl Measured for AllocReport {
    fn what(&self) -> String {
        "alloc".to_owned()
    }

    fn figures(&self) -> Vec<Figure> {
        let timings = self.timings.iter().flat_map(|timing| {
            [
                ("fill", timing.fill_ns),
                ("replace", timing.replace_ns),
                ("replace near", timing.replace_near_ns),
                ("drain", timing.drain_ns),
            ]
            .map(|(name, ns)| Figure::new(format!("{} B {name}, ns", timing.payload_bytes), ns))
        });
        let mixed = Figure::new("mixed sizes replace, ns", self.mixed.replace_ns);
        timings.chain([mixed]).collect()
    }
}

/// Formats the waste of each class, the waste of all classes together, and the times.
impl fmt::Display for AllocReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut classes = vec![headings(
            "class|object|data up to|waste mean|most|versions|run|objects|tail",
        )];
        classes.extend(self.fragmentation.classes.iter().map(line_of_class));
        let mut timings = vec![headings(
            "ns per object|live|fill|replace|replace near|in block|drain",
        )];
        timings.extend(self.timings.iter().map(line_of_timing));
        for lines in [classes, self.shares(), timings] {
            writeln!(out, "{}", table(&lines, [0; 2]))?;
        }
        let mixed = &self.mixed;
        write!(
            out,
            "  {} objects of 1 to {} bytes: replace {:.1} ns, {} lost inside objects, {} of blocks free",
            mixed.objects,
            mixed.most_payload_bytes,
            mixed.replace_ns,
            percent(mixed.internal_fragmentation),
            percent(mixed.external_fragmentation),
        )
    }
}

impl AllocReport {
    fn shares(&self) -> Vec<Vec<String>> {
        let loss = &self.fragmentation;
        let block_table = format!("block table, {} bytes of each region", loss.table_bytes);
        let shares = [
            ("waste inside objects, data of every size", loss.mean_waste),
            ("  most, above 1.75 KiB", loss.max_waste),
            ("  mean, up to 1.75 KiB", loss.mean_waste_small),
            ("after the last object of a run, mean", loss.mean_tail_waste),
            ("  most", loss.max_tail_waste),
            (&block_table, loss.table_share),
        ];
        shares
            .map(|(what, share)| cells![what, percent(share)])
            .into()
    }
}

fn line_of_class(it: &ClassFragmentation) -> Vec<String> {
    cells![
        it.class.get(),
        it.object_bytes,
        it.payload_capacity,
        percent(it.mean_waste),
        percent(it.max_waste),
        percent(it.versions_share),
        it.run_blocks,
        it.objects_per_run,
        percent(it.tail_waste)
    ]
}

fn line_of_timing(it: &AllocTiming) -> Vec<String> {
    let ns = |ns: f64| format!("{ns:.1}");
    cells![
        format!("{} bytes", it.payload_bytes),
        it.objects,
        ns(it.fill_ns),
        ns(it.replace_ns),
        ns(it.replace_near_ns),
        percent(it.near_in_block),
        ns(it.drain_ns)
    ]
}

fn percent(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
}

#[cfg(test)]
mod tests;
