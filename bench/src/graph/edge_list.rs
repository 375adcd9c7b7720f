//! Edge lists as text, as the collection SNAP publishes them: a line has the ids of two nodes, lines that begin with `#` are
//! comments. The text may be compressed with gzip.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;

use crate::data::DataError;

/// The greatest length of a line, in bytes. A longer line shows that the file is not an edge list.
const MAX_LINE_BYTES: u64 = 4096;

/// The first bytes of a gzip stream.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The first bytes of a text that some editors write.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Bytes that are read from a file at once.
const BUFFER_BYTES: usize = 64 << 10;

/// Number of lines at the beginning of a file from which its sizes are estimated.
const PROBED_LINES: usize = 100_000;

/// Number of edges of a node that is assumed if the file does not have it.
const ASSUMED_DEGREE: u64 = 4;

/// Why an edge was not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EdgeError {
    /// A line is not an edge. The next lines can be read.
    #[error(transparent)]
    Line(DataError),
    /// The file cannot be read further.
    #[error(transparent)]
    File(DataError),
}

/// The numbers of nodes and edges of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Number of nodes.
    pub nodes: u64,
    /// Number of lines with edges.
    pub edges: u64,
}

/// Reads an edge list, one line after the other. A line that is not an edge is an error, after which the next lines can be
/// read; an error of the file itself ends the list.
pub struct EdgeList<R> {
    name: String,
    text: R,
    line: Vec<u8>,
    number: u64,
    ended: bool,
    announced: Option<Sizes>,
}

/// An edge list in a file.
pub struct EdgeFile {
    list: EdgeList<Box<dyn BufRead + Send>>,
    bytes: Arc<AtomicU64>,
    len: u64,
}

/// Counts the bytes that are read.
struct Counted<R> {
    from: R,
    bytes: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(into)?;
        self.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

impl EdgeFile {
    /// Opens a file, and detects whether it is compressed.
    ///
    /// # Errors
    /// [`DataError`] if the file cannot be read.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let name = path.display().to_string();
        let failed = |error: io::Error| DataError(format!("cannot read {name}: {error}"));
        let file = File::open(path).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        let bytes = Arc::new(AtomicU64::new(0));
        let counted = Counted {
            from: file,
            bytes: Arc::clone(&bytes),
        };
        let mut file = BufReader::with_capacity(BUFFER_BYTES, counted);
        let compressed = file.fill_buf().map_err(failed)?.starts_with(&GZIP);
        let text: Box<dyn BufRead + Send> = match compressed {
            true => {
                let decoder = MultiGzDecoder::new(file);
                Box::new(BufReader::with_capacity(BUFFER_BYTES, decoder))
            }
            false => Box::new(file),
        };
        let list = EdgeList::new(name, text);
        Ok(Self { list, bytes, len })
    }

    /// Returns the number of bytes that were read from the file. They are compressed if the file is.
    pub fn position(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes of the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the file has no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Estimates the sizes of a list from its first lines. A comment as in `# Nodes: 4 Edges: 3`, which the files of SNAP
    /// have, determines them, unless it contradicts the length of the file.
    ///
    /// # Errors
    /// [`DataError`] if the file cannot be opened.
    pub fn sizes(path: &Path) -> Result<Sizes, DataError> {
        let mut file = Self::open(path)?;
        let mut nodes = BTreeSet::new();
        let mut edges = 0;
        for edge in file.by_ref().take(PROBED_LINES).flatten() {
            nodes.extend([edge.0, edge.1]);
            edges += 1;
        }
        let whole = file.next().is_none();
        let probed = Sizes {
            nodes: nodes.len() as u64,
            edges,
        };
        if whole {
            return Ok(probed);
        }
        let scale = file.len as f64 / file.position().max(1) as f64;
        let estimated = ((edges as f64 * scale) as u64).max(edges);
        Ok(match file.list.announced {
            Some(it) if it.edges / 4 <= estimated && estimated / 4 <= it.edges => Sizes {
                nodes: it.nodes.min(2 * it.edges),
                ..it
            },
            _ => Sizes {
                nodes: probed.nodes.max(estimated / ASSUMED_DEGREE),
                edges: estimated,
            },
        })
    }
}

impl Iterator for EdgeFile {
    type Item = Result<(u64, u64), EdgeError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.list.next()
    }
}

/// Returns the sizes that a comment has, as in `# Nodes: 4 Edges: 3`.
fn announced(comment: &[u8]) -> Option<Sizes> {
    let text = std::str::from_utf8(comment).ok()?;
    let mut words = text.trim_start_matches('#').split_whitespace();
    let mut number_after = |name: &str| {
        words.next().filter(|word| *word == name)?;
        words.next()?.parse().ok()
    };
    Some(Sizes {
        nodes: number_after("Nodes:")?,
        edges: number_after("Edges:")?,
    })
}

impl<R: BufRead> EdgeList<R> {
    /// Reads a text. `name` is its name in messages.
    pub fn new(name: impl Into<String>, text: R) -> Self {
        Self {
            name: name.into(),
            text,
            line: Vec::new(),
            number: 0,
            ended: false,
            announced: None,
        }
    }

    fn error(&self, why: &str) -> DataError {
        DataError(format!("{}:{}: {why}", self.name, self.number))
    }

    /// Reads the next line. Returns `None` at the end.
    fn next_line(&mut self) -> Option<Result<(), EdgeError>> {
        self.line.clear();
        self.number += 1;
        let mut part = self.text.by_ref().take(MAX_LINE_BYTES);
        match part.read_until(b'\n', &mut self.line) {
            Ok(0) => None,
            Ok(_) if self.line.len() as u64 == MAX_LINE_BYTES && !self.line.ends_with(b"\n") => {
                self.ended = true;
                Some(Err(EdgeError::File(self.error(
                    "the line is longer than 4096 bytes: the file is not an edge list",
                ))))
            }
            Ok(_) => Some(Ok(())),
            Err(error) => {
                self.ended = true;
                let why = format!("the file cannot be read further: {error}");
                Some(Err(EdgeError::File(self.error(&why))))
            }
        }
    }

    /// Parses the line that was read. Returns `None` for a comment.
    fn parse(&mut self) -> Option<Result<(u64, u64), EdgeError>> {
        let text = match self.number {
            1 => self.line.strip_prefix(BYTE_ORDER_MARK),
            _ => None,
        };
        let line = text.unwrap_or(&self.line).trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            self.announced = self.announced.or_else(|| announced(line));
            return None;
        }
        let mut words = line
            .split(u8::is_ascii_whitespace)
            .filter(|it| !it.is_empty());
        let mut id = || {
            let word = std::str::from_utf8(words.next()?).ok()?;
            word.parse::<u64>().ok().filter(|id| *id < 1 << 63)
        };
        let edge = id().zip(id()).filter(|_| words.next().is_none());
        let shown: String = String::from_utf8_lossy(line).chars().take(40).collect();
        let wrong = || {
            EdgeError::Line(self.error(&format!(
                "{shown:?} is not an edge: two ids from 0 to below 2^63, separated by a space or tab"
            )))
        };
        Some(edge.ok_or_else(wrong))
    }
}

impl<R: BufRead> Iterator for EdgeList<R> {
    type Item = Result<(u64, u64), EdgeError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            match self.next_line()? {
                Ok(()) => {
                    if let Some(edge) = self.parse() {
                        return Some(edge);
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const TEXT: &str = "# Nodes: 4 Edges: 3\n0\t1\n\n1 2\r\n  3   0  \n";

    fn read(text: &[u8]) -> Vec<Result<(u64, u64), String>> {
        let list = EdgeList::new("x", text);
        list.map(|edge| edge.map_err(|error| error.to_string()))
            .collect()
    }

    #[test]
    fn comments_and_empty_lines_are_skipped() {
        assert_eq!(read(TEXT.as_bytes()), [Ok((0, 1)), Ok((1, 2)), Ok((3, 0))]);
        assert_eq!(read(b""), []);
        assert_eq!(read(b"7 8"), [Ok((7, 8))]);
        let marked = format!(
            "{BYTE_ORDER_MARK}1 2\n{BYTE_ORDER_MARK}3 4\n",
            BYTE_ORDER_MARK = "\u{feff}"
        );
        let found = read(marked.as_bytes());
        assert!(found[0] == Ok((1, 2)) && found[1].is_err(), "{found:?}");
    }

    #[test]
    fn each_wrong_line_is_an_error_with_its_number() {
        let found = read(b"1 2\n1\n1 2 3\n-1 2\n9223372036854775808 1\na b\n\xff 1\n3 4\n");
        assert_eq!((&found[0], &found[7]), (&Ok((1, 2)), &Ok((3, 4))));
        for (at, wrong) in found[1..7].iter().enumerate() {
            let wrong = wrong.as_ref().unwrap_err();
            assert!(wrong.starts_with(&format!("x:{}: ", at + 2)), "{wrong}");
            assert!(wrong.contains("is not an edge"), "{wrong}");
        }
        let long = read(&[b'1'; 10_000]);
        assert!(
            long.len() == 1 && long[0].as_ref().unwrap_err().contains("4096"),
            "{long:?}"
        );
    }

    #[test]
    fn compressed_files_are_detected_and_truncated_ones_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("edges.txt.gz");
        let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        let all: String = (0..5000).map(|id| format!("{id}\t{}\n", id * 7)).collect();
        writer.write_all(all.as_bytes()).unwrap();
        let bytes = writer.finish().unwrap();
        std::fs::write(&path, &bytes).unwrap();
        let edges = EdgeFile::open(&path).unwrap();
        let edges: Vec<(u64, u64)> = edges.map(|edge| edge.unwrap()).collect();
        assert!(edges.iter().copied().eq((0..5000).map(|id| (id, id * 7))));
        std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        let last = EdgeFile::open(&path).unwrap().last().unwrap();
        let last = last.unwrap_err();
        assert!(matches!(last, EdgeError::File(_)), "{last:?}");
        let why = last.to_string();
        assert!(
            why.contains("edges.txt.gz:") && why.contains("cannot be read further"),
            "{why}"
        );
        let missing = EdgeFile::open(&dir.path().join("none")).err().unwrap();
        assert!(missing.to_string().contains("none"), "{missing}");
    }

    #[test]
    fn sizes_are_estimated_from_the_first_lines() {
        let dir = tempfile::tempdir().unwrap();
        let sizes = |text: &str| {
            let path = dir.path().join("edges");
            std::fs::write(&path, text).unwrap();
            let file = EdgeFile::open(&path).unwrap();
            assert_eq!(file.len(), text.len() as u64);
            let Sizes { nodes, edges } = EdgeFile::sizes(&path).unwrap();
            (nodes, edges)
        };
        assert_eq!(sizes(""), (0, 0));
        assert_eq!(sizes("# Nodes: 900 Edges: 900\n1 2\n2 1\nx\n2 3\n"), (3, 3));
        let lines: String = (0..300_000)
            .map(|id| format!("{:06} {:06}\n", id / 10, id % 100))
            .collect();
        let (nodes, edges) = sizes(&lines);
        assert!((280_000..320_000).contains(&edges), "{edges}");
        assert_eq!(nodes, edges / 4);
        let announced = |comment: &str| sizes(&format!("# A graph\n{comment}\n{lines}"));
        assert_eq!(announced("# Nodes: 30000 Edges: 300001"), (30_000, 300_001));
        assert_eq!(
            announced("# Nodes: 9999999 Edges: 200000"),
            (400_000, 200_000)
        );
        for wrong in [
            "# Nodes: 5 Edges: 99999999999",
            "# Nodes: 5 Edges: 7",
            "# Nodes: x Edges: 1",
        ] {
            assert!(announced(wrong).1.abs_diff(edges) < 100, "{wrong}");
        }
    }
}
