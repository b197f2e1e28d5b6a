//! The images; examples/data/README.md says how they are stored.

use std::io;
use std::path::Path;

pub const PIXELS: usize = 64;
const RECORD: usize = PIXELS + 1;

pub struct Image {
    pub pixels: [f32; PIXELS], // 0 to 1
    pub digit: usize,
}

pub struct Digits {
    pub train: Vec<Image>,
    pub test: Vec<Image>,
}

impl Digits {
    pub fn read(path: &Path) -> io::Result<Digits> {
        let bytes = std::fs::read(path)
            .map_err(|error| io::Error::new(error.kind(), format!("cannot read {}: {}", path.display(), error)))?;
        if bytes.is_empty() || bytes.len() % RECORD != 0 {
            let message = format!("{} has {} bytes, no multiple of {}", path.display(), bytes.len(), RECORD);
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let image = |record: &[u8]| {
            let mut pixels = [0.0; PIXELS];
            for (pixel, &byte) in pixels.iter_mut().zip(record) {
                *pixel = f32::from(byte) / 16.0;
            }
            Image { pixels, digit: record[PIXELS].into() }
        };
        let mut test: Vec<Image> = bytes.chunks_exact(RECORD).map(image).collect();
        let train = test.split_off(test.len() / 5); // the first fifth is for the test
        Ok(Digits { train, test })
    }
}
