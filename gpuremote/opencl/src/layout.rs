//! How a transfer's data lies in the program's memory.

/// Rows and slices of data in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Length of a row, in bytes.
    pub row_bytes: usize,
    pub rows: usize,
    pub slices: usize,
    /// From one row to the next, in bytes.
    pub row_pitch: usize,
    /// From one slice to the next, in bytes.
    pub slice_pitch: usize,
}

impl Layout {
    /// Bytes without gaps.
    pub fn of_bytes(bytes: usize) -> Self {
        Layout { row_bytes: bytes, rows: 1, slices: 1, row_pitch: bytes, slice_pitch: bytes }
    }

    /// A region of a width in bytes, a height and a depth. A pitch of 0 means no gaps. None when the pitches are too short for the region.
    pub fn of_region(region: [usize; 3], row_pitch: usize, slice_pitch: usize) -> Option<Self> {
        let [row_bytes, rows, slices] = region;
        let row_pitch = if row_pitch == 0 { row_bytes } else { row_pitch };
        let least = rows.checked_mul(row_pitch)?;
        let slice_pitch = if slice_pitch == 0 { least } else { slice_pitch };
        let fits = row_pitch >= row_bytes && (slices <= 1 || slice_pitch >= least) && slice_pitch.checked_mul(slices).is_some();
        fits.then_some(Layout { row_bytes, rows, slices, row_pitch, slice_pitch })
    }

    /// Length of the data, in bytes.
    pub fn bytes(&self) -> usize {
        self.row_bytes * self.rows * self.slices
    }

    /// Whether there are no gaps.
    pub fn is_tight(&self) -> bool {
        (self.rows <= 1 || self.row_pitch == self.row_bytes) && (self.slices <= 1 || self.slice_pitch == self.row_bytes * self.rows)
    }

    fn offsets(self) -> impl Iterator<Item = usize> {
        (0..self.slices).flat_map(move |slice| (0..self.rows).map(move |row| slice * self.slice_pitch + row * self.row_pitch))
    }

    /// Gathers the rows that lie here.
    ///
    /// # Safety
    /// Memory at `from` has this layout.
    pub unsafe fn gather(&self, from: *const u8) -> Vec<u8> {
        let mut tight = Vec::with_capacity(self.bytes());
        for offset in self.offsets() {
            tight.extend_from_slice(std::slice::from_raw_parts(from.add(offset), self.row_bytes));
        }
        tight
    }

    /// Scatters rows to where they lie.
    ///
    /// # Safety
    /// Memory at `to` has this layout, and `tight` as many bytes.
    pub unsafe fn scatter(&self, tight: &[u8], to: *mut u8) {
        for (row, offset) in self.offsets().enumerate() {
            std::ptr::copy_nonoverlapping(tight.as_ptr().add(row * self.row_bytes), to.add(offset), self.row_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_gathered_and_scattered() {
        let layout = Layout::of_region([2, 2, 2], 3, 8).unwrap();
        let memory: Vec<u8> = (0..16).collect();
        // SAFETY: the last row ends at 8 + 3 + 2 bytes.
        let tight = unsafe { layout.gather(memory.as_ptr()) };
        assert_eq!(tight, [0, 1, 3, 4, 8, 9, 11, 12]);
        let mut back = vec![0xff; 16];
        // SAFETY: as above.
        unsafe { layout.scatter(&tight, back.as_mut_ptr()) };
        assert_eq!(back[..6], [0, 1, 0xff, 3, 4, 0xff]);
        assert!(!layout.is_tight() && Layout::of_region([2, 2, 2], 0, 0).unwrap().is_tight());
    }

    #[test]
    fn pitches_must_hold_the_region() {
        assert_eq!(Layout::of_region([4, 2, 1], 3, 0), None);
        assert_eq!(Layout::of_region([4, 2, 2], 4, 7), None);
        assert!(Layout::of_region([4, 2, 1], 4, 1).is_some(), "one slice needs no pitch");
    }
}
