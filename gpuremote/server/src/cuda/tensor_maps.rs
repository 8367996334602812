//! Maps of tensors, which the driver encodes at places of their own alignment.

use std::io;

use gpuremote_wire::{Decoder, Encoder, Malformed};

use super::{Server, NOT_SUPPORTED};
use crate::worker::{Link, Outcome};

/// The most dimensions of a tensor.
const MOST_DIMENSIONS: u32 = 5;

/// A CUtensorMap.
#[repr(C, align(64))]
struct Map([u8; 128]);

/// What all maps begin with.
struct Tensor {
    element: i32,
    rank: u32,
    address: u64,
    sizes: Vec<u64>,
    strides: Vec<u64>,
}

fn list<T>(count: u32, mut value: impl FnMut() -> Result<T, Malformed>) -> Result<Vec<T>, Malformed> {
    (0..count).map(|_| value()).collect()
}

impl Tensor {
    fn read(decoder: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let (element, rank, address) = (decoder.i32()?, decoder.u32()?, decoder.u64()?);
        if !(1..=MOST_DIMENSIONS).contains(&rank) {
            return Err(Malformed("a tensor has too many dimensions"));
        }
        let sizes = list(rank, || decoder.u64())?;
        Ok(Tensor { element, rank, address, sizes, strides: list(rank - 1, || decoder.u64())? })
    }
}

fn encoded(values: &mut Encoder, run: impl FnOnce(*mut u8) -> i32) -> io::Result<Outcome> {
    let mut map = Map([0; 128]);
    let status = run(map.0.as_mut_ptr());
    values.raw(&map.0);
    Ok(Outcome::Status(status))
}

impl Server {
    pub unsafe fn cu_tensor_map_encode_tiled(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let Tensor { element, rank, address, sizes, strides } = Tensor::read(decoder)?;
        let extents = list(rank, || decoder.u32())?;
        let steps = list(rank, || decoder.u32())?;
        let [interleave, swizzle, promotion, fill] = [decoder.i32()?, decoder.i32()?, decoder.i32()?, decoder.i32()?];
        decoder.finish()?;
        let Some(run) = self.functions.cuTensorMapEncodeTiled else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let (sizes, strides, extents, steps) = (sizes.as_ptr(), strides.as_ptr(), extents.as_ptr(), steps.as_ptr());
        encoded(values, |map| run(map, element, rank, address, sizes, strides, extents, steps, interleave, swizzle, promotion, fill))
    }

    pub unsafe fn cu_tensor_map_encode_im2col(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let Tensor { element, rank, address, sizes, strides } = Tensor::read(decoder)?;
        let corners = rank.checked_sub(2).ok_or(Malformed("a tensor has too few dimensions"))?;
        let lower = list(corners, || decoder.i32())?;
        let upper = list(corners, || decoder.i32())?;
        let steps = list(rank, || decoder.u32())?;
        let [channels, pixels] = [decoder.u32()?, decoder.u32()?];
        let [interleave, swizzle, promotion, fill] = [decoder.i32()?, decoder.i32()?, decoder.i32()?, decoder.i32()?];
        decoder.finish()?;
        let Some(run) = self.functions.cuTensorMapEncodeIm2col else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let (sizes, strides, lower, upper, steps) = (sizes.as_ptr(), strides.as_ptr(), lower.as_ptr(), upper.as_ptr(), steps.as_ptr());
        encoded(values, |map| {
            run(map, element, rank, address, sizes, strides, lower, upper, channels, pixels, steps, interleave, swizzle, promotion, fill)
        })
    }

    pub unsafe fn cu_tensor_map_encode_im2col_wide(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let Tensor { element, rank, address, sizes, strides } = Tensor::read(decoder)?;
        let steps = list(rank, || decoder.u32())?;
        let [lower, upper] = [decoder.i32()?, decoder.i32()?];
        let [channels, pixels] = [decoder.u32()?, decoder.u32()?];
        let [interleave, mode, swizzle, promotion, fill] = [decoder.i32()?, decoder.i32()?, decoder.i32()?, decoder.i32()?, decoder.i32()?];
        decoder.finish()?;
        let Some(run) = self.functions.cuTensorMapEncodeIm2colWide else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let (sizes, strides, steps) = (sizes.as_ptr(), strides.as_ptr(), steps.as_ptr());
        encoded(values, |map| {
            run(
                map, element, rank, address, sizes, strides, lower, upper, channels, pixels, steps, interleave, mode, swizzle, promotion,
                fill,
            )
        })
    }

    pub unsafe fn cu_tensor_map_replace_address(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let mut map = Map(decoder.take(128)?.try_into().expect("as many bytes as were taken"));
        let address = decoder.u64()?;
        decoder.finish()?;
        let Some(run) = self.functions.cuTensorMapReplaceAddress else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let status = run(map.0.as_mut_ptr(), address);
        values.raw(&map.0);
        Ok(Outcome::Status(status))
    }
}
