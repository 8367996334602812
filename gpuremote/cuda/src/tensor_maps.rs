//! Maps of tensors: how the GPU's copy engine finds boxes of a tensor in memory. The driver encodes them in a form of its own, so the server is asked,
//! once for each set of arguments.

use std::collections::HashMap;
use std::slice;
use std::sync::{Mutex, OnceLock};

use gpuremote_client::wire::Encoder;

use crate::front;
use crate::stubs::{numbers, STATUSES};

/// Length of a CUtensorMap in bytes.
const MAP_BYTES: usize = 128;
/// The most dimensions of a tensor.
const MOST_DIMENSIONS: u32 = 5;
/// So many maps are kept: more than the matrices of large programs.
const KEPT_MAPS: usize = 1 << 14;

type Map = [u8; MAP_BYTES];

fn kept() -> &'static Mutex<HashMap<Vec<u8>, Map>> {
    static KEPT: OnceLock<Mutex<HashMap<Vec<u8>, Map>>> = OnceLock::new();
    KEPT.get_or_init(Mutex::default)
}

unsafe fn encode(number: u16, map: *mut Map, arguments: &Encoder) -> i32 {
    if map.is_null() {
        return STATUSES.invalid;
    }
    let key = [&number.to_le_bytes(), arguments.bytes()].concat();
    if let Some(found) = kept().lock().expect("no one panics with this lock").get(&key) {
        *map = *found;
        return STATUSES.ok;
    }
    let status = front().call(
        number,
        |encoder| encoder.raw(arguments.bytes()),
        |decoder| {
            (*map).copy_from_slice(decoder.take(MAP_BYTES)?);
            Ok(())
        },
    );
    if status == STATUSES.ok {
        let mut kept = kept().lock().expect("no one panics with this lock");
        if kept.len() >= KEPT_MAPS {
            kept.clear();
        }
        kept.insert(key, *map);
    }
    status
}

/// A tensor: the type of its elements, its place, and its sizes and strides, which all maps begin with.
struct Tensor {
    element: i32,
    rank: u32,
    address: u64,
    sizes: *const u64,
    strides: *const u64,
}

impl Tensor {
    unsafe fn encode(&self, encoder: &mut Encoder) -> Option<()> {
        if !(1..=MOST_DIMENSIONS).contains(&self.rank) {
            return None;
        }
        encoder.i32(self.element);
        encoder.u32(self.rank);
        encoder.u64(self.address);
        numbers_of(encoder, self.sizes, self.rank, Encoder::u64)?;
        numbers_of(encoder, self.strides, self.rank - 1, Encoder::u64)
    }
}

/// Appends a list of numbers. None: there is no list where one is needed.
unsafe fn numbers_of<T: Copy>(encoder: &mut Encoder, list: *const T, count: u32, put: fn(&mut Encoder, T)) -> Option<()> {
    if list.is_null() {
        return (count == 0).then_some(());
    }
    for number in slice::from_raw_parts(list, count as usize) {
        put(encoder, *number);
    }
    Some(())
}

#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn cuTensorMapEncodeTiled(
    map: *mut Map,
    element: i32,
    rank: u32,
    address: u64,
    sizes: *const u64,
    strides: *const u64,
    extents: *const u32,
    steps: *const u32,
    interleave: i32,
    swizzle: i32,
    promotion: i32,
    fill: i32,
) -> i32 {
    let mut encoder = Encoder::default();
    let described = (|| {
        Tensor { element, rank, address, sizes, strides }.encode(&mut encoder)?;
        numbers_of(&mut encoder, extents, rank, Encoder::u32)?;
        numbers_of(&mut encoder, steps, rank, Encoder::u32)
    })();
    if described.is_none() {
        return STATUSES.invalid;
    }
    for kind in [interleave, swizzle, promotion, fill] {
        encoder.i32(kind);
    }
    encode(numbers::cuTensorMapEncodeTiled, map, &encoder)
}

#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn cuTensorMapEncodeIm2col(
    map: *mut Map,
    element: i32,
    rank: u32,
    address: u64,
    sizes: *const u64,
    strides: *const u64,
    lower: *const i32,
    upper: *const i32,
    channels: u32,
    pixels: u32,
    steps: *const u32,
    interleave: i32,
    swizzle: i32,
    promotion: i32,
    fill: i32,
) -> i32 {
    let mut encoder = Encoder::default();
    let described = (|| {
        Tensor { element, rank, address, sizes, strides }.encode(&mut encoder)?;
        // Neither batch nor channels have corners.
        let corners = rank.checked_sub(2)?;
        numbers_of(&mut encoder, lower, corners, Encoder::i32)?;
        numbers_of(&mut encoder, upper, corners, Encoder::i32)?;
        numbers_of(&mut encoder, steps, rank, Encoder::u32)
    })();
    if described.is_none() {
        return STATUSES.invalid;
    }
    encoder.u32(channels);
    encoder.u32(pixels);
    for kind in [interleave, swizzle, promotion, fill] {
        encoder.i32(kind);
    }
    encode(numbers::cuTensorMapEncodeIm2col, map, &encoder)
}

#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn cuTensorMapEncodeIm2colWide(
    map: *mut Map,
    element: i32,
    rank: u32,
    address: u64,
    sizes: *const u64,
    strides: *const u64,
    lower: i32,
    upper: i32,
    channels: u32,
    pixels: u32,
    steps: *const u32,
    interleave: i32,
    mode: i32,
    swizzle: i32,
    promotion: i32,
    fill: i32,
) -> i32 {
    let mut encoder = Encoder::default();
    let described = (|| {
        Tensor { element, rank, address, sizes, strides }.encode(&mut encoder)?;
        numbers_of(&mut encoder, steps, rank, Encoder::u32)
    })();
    if described.is_none() {
        return STATUSES.invalid;
    }
    encoder.i32(lower);
    encoder.i32(upper);
    encoder.u32(channels);
    encoder.u32(pixels);
    for kind in [interleave, mode, swizzle, promotion, fill] {
        encoder.i32(kind);
    }
    encode(numbers::cuTensorMapEncodeIm2colWide, map, &encoder)
}

#[no_mangle]
pub unsafe extern "C" fn cuTensorMapReplaceAddress(map: *mut Map, address: u64) -> i32 {
    if map.is_null() {
        return STATUSES.invalid;
    }
    let mut encoder = Encoder::default();
    encoder.raw(&*map);
    encoder.u64(address);
    encode(numbers::cuTensorMapReplaceAddress, map, &encoder)
}
