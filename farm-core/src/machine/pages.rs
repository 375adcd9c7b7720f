//! Checks that memory has the pages that the configuration requires.

use std::path::PathBuf;

use crate::config::{Config, Fabric, HugePages};
use crate::mem::{HUGE_PAGE_BYTES, Mapping, MappingError, Memory};

/// The configuration's requirements on the pages of memory.
pub(super) struct Pages {
    required: bool,
    /// Directory of the memory's files; `None` if the memory is not in files.
    dir: Option<PathBuf>,
}

impl Pages {
    pub(super) fn of(config: &Config) -> Self {
        let in_files = config.cluster.fabric == Fabric::Shm;
        Self {
            required: config.memory.huge_pages == HugePages::Require,
            dir: in_files.then(|| config.memory.dir.clone()),
        }
    }

    /// Checks, before memory is allocated, that the directory provides huge pages if they are
    /// required.
    pub(super) fn check_directory(&self) -> Result<(), MappingError> {
        match &self.dir {
            Some(dir) if self.required => {
                let page_bytes = Mapping::page_bytes_of(dir, true)?;
                self.check_bytes(page_bytes).map(drop)
            }
            // Memory that is not in files is checked when it is allocated.
            _ => Ok(()),
        }
    }

    /// Checks the pages of a segment of rings. Segments in files may be smaller than a huge page,
    /// so they are not checked.
    pub(super) fn check_segment(&self, memory: &Memory) -> Result<(), MappingError> {
        match self.dir {
            Some(_) => Ok(()),
            None => self.check(memory).map(drop),
        }
    }

    /// Checks the pages of `memory`. Returns their size in bytes.
    pub(super) fn check(&self, memory: &Memory) -> Result<u64, MappingError> {
        self.check_bytes(memory.page_bytes())
    }

    fn check_bytes(&self, page_bytes: usize) -> Result<u64, MappingError> {
        let short = self.required && page_bytes < HUGE_PAGE_BYTES;
        let page_bytes = page_bytes as u64;
        match (short, &self.dir) {
            (false, _) => Ok(page_bytes),
            (true, None) => Err(MappingError::NoPrivateHugePages { page_bytes }),
            (true, Some(dir)) => Err(MappingError::NoHugePages {
                dir: dir.clone(),
                page_bytes,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_huge_pages_error_says_where_to_get_them() {
        let mut config = Config::default_for(2, 1);
        let small = Memory::anonymous(4096);
        assert!(Pages::of(&config).check(&small).is_ok());
        config.memory.huge_pages = HugePages::Require;
        let pages = Pages::of(&config);
        let text = pages.check(&small).unwrap_err().to_string();
        assert!(text.contains("memory.dir"), "{text}");
        assert!(pages.check_segment(&small).is_ok());
        config.cluster.fabric = Fabric::Verbs;
        let pages = Pages::of(&config);
        assert!(pages.check_directory().is_ok());
        let text = pages.check_segment(&small).unwrap_err().to_string();
        assert!(
            text.contains("vm.nr_hugepages") && !text.contains("memory.dir"),
            "{text}"
        );
    }
}
