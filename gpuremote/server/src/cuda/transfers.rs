//! Calls that copy between host memory and the GPU.

use std::ffi::c_void;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{mpsc, Arc};

use gpuremote_wire::{pieces, Decoder, Encoder, Malformed, MOST_STRIPES};

use super::copies::Transfer;
use super::{calls, Server, INVALID_HANDLE, NOT_SUPPORTED};
use crate::worker::{Link, Outcome, Stripe};

/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.
const CAPTURE_UNSUPPORTED: i32 = 900;
/// CU_STREAM_PER_THREAD: another thread means another stream by it.
const OF_THREAD: usize = 2;

/// By what way the data of a copy goes.
enum Way {
    /// After the message.
    Lane,
    /// It lies in host memory that both sides share, at this offset in bytes.
    Shared(usize),
    /// By so many stripes.
    Stripes(usize),
}

/// A copy as the client asks for it.
struct Request {
    device: u64,
    bytes: usize,
    stream: Option<*mut c_void>,
    at_once: bool,
    way: Way,
}

impl Server {
    fn request(&self, decoder: &mut Decoder<'_>) -> Result<Request, Malformed> {
        let (device, bytes, stream, at_once) = (decoder.u64()?, decoder.usize()?, decoder.u64()?, decoder.u8()? != 0);
        let (way, place) = (decoder.u8()?, decoder.usize()?);
        decoder.finish()?;
        let way = match way {
            0 => Way::Lane,
            1 => Way::Shared(place),
            2 if (1..=MOST_STRIPES).contains(&place) => Way::Stripes(place),
            _ => return Err(Malformed("there is no such way for data")),
        };
        Ok(Request { device, bytes, stream: self.handles.get(calls::kinds::CUstream, stream), at_once, way })
    }

    fn transfer(&self, request: &Request) -> Transfer {
        let stream = request.stream.unwrap_or(std::ptr::null_mut());
        let ended_contexts = self.shared.ended_contexts.load(Ordering::SeqCst);
        Transfer { device: request.device, bytes: request.bytes, stream, ended_contexts }
    }

    /// Whether this stream captures what it is given: data that passes through a lane would be gone when the graph is launched.
    pub unsafe fn captures(&self, stream: Option<*mut c_void>) -> bool {
        let mut capturing = 0;
        self.shared.captures.load(Ordering::SeqCst)
            && stream.is_some_and(|stream| {
                self.functions.cuStreamIsCapturing.is_some_and(|asks| asks(stream, &mut capturing) == 0 && capturing != 0)
            })
    }

    /// To the GPU.
    pub unsafe fn cu_memcpy_hto_dasync_v2(
        &mut self,
        link: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        _: &mut Encoder,
    ) -> io::Result<Outcome> {
        let request = self.request(decoder)?;
        let transfer = self.transfer(&request);
        let wrong = if request.stream.is_none() {
            Some(INVALID_HANDLE)
        } else if !matches!(request.way, Way::Shared(_)) && self.captures(request.stream) {
            Some(CAPTURE_UNSUPPORTED)
        } else {
            None
        };
        let status = match request.way {
            // What is on its way must be taken, whatever becomes of it.
            Way::Lane if wrong.is_some() => {
                link.lane.skip(request.bytes)?;
                0
            }
            Way::Lane => self.copier.upload(&self.shared.functions, &mut link.lane, transfer, request.at_once)?,
            Way::Stripes(count) => self.striped(link, transfer, count, true, wrong.is_none())?,
            Way::Shared(_) if wrong.is_some() => 0,
            Way::Shared(offset) => {
                let from = Self::host_address(link, offset, request.bytes)?;
                match (request.at_once, self.functions.cuMemcpyHtoD_v2, self.functions.cuMemcpyHtoDAsync_v2) {
                    (true, Some(run), _) => run(request.device, from, request.bytes),
                    (false, _, Some(run)) => run(request.device, from, request.bytes, transfer.stream),
                    _ => NOT_SUPPORTED,
                }
            }
        };
        Ok(Outcome::Status(wrong.unwrap_or(status)))
    }

    /// From the GPU. Unless it lies in shared memory, data follows a reply with success, and the status of the copy follows the data.
    pub unsafe fn cu_memcpy_dto_hasync_v2(
        &mut self,
        link: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        _: &mut Encoder,
    ) -> io::Result<Outcome> {
        let request = self.request(decoder)?;
        let transfer = self.transfer(&request);
        if request.stream.is_none() {
            return Ok(Outcome::Status(INVALID_HANDLE));
        }
        if let Way::Shared(offset) = request.way {
            let to = Self::host_address(link, offset, request.bytes)?;
            let status = match (request.at_once, self.functions.cuMemcpyDtoH_v2, self.functions.cuMemcpyDtoHAsync_v2) {
                (true, Some(run), _) => run(to, request.device, request.bytes),
                (false, _, Some(run)) => run(to, request.device, request.bytes, transfer.stream),
                _ => NOT_SUPPORTED,
            };
            return Ok(Outcome::Status(status));
        }
        if self.captures(request.stream) {
            return Ok(Outcome::Status(CAPTURE_UNSUPPORTED));
        }
        if !link.replies {
            return Err(Malformed("data without a reply has nowhere to go").into());
        }
        link.reply(0, &[])?;
        let status = match request.way {
            Way::Stripes(count) => {
                link.lane.flush()?;
                self.striped(link, transfer, count, false, true)?
            }
            _ => self.copier.download(&self.shared.functions, &mut link.lane, transfer)?,
        };
        link.lane.write(&status.to_le_bytes())?;
        link.lane.flush()?;
        Ok(Outcome::Replied)
    }

    /// Lets stripes carry a copy, and waits for all of them. Without `copies`, what is on its way is thrown away.
    unsafe fn striped(&self, link: &Link<'_>, transfer: Transfer, count: usize, upload: bool, copies: bool) -> io::Result<i32> {
        let mut context = 0;
        if let Some(current) = self.functions.cuCtxGetCurrent {
            current(&mut context);
        }
        if transfer.stream as usize == OF_THREAD {
            return Err(Malformed("a thread's own stream can't be striped").into());
        }
        let (done, ends) = mpsc::channel();
        for (stripe, (offset, bytes)) in pieces(transfer.bytes, count).enumerate() {
            let part = Transfer { device: transfer.device + offset as u64, bytes, ..transfer };
            let (shared, done) = (Arc::clone(&self.shared), done.clone());
            link.stripe(
                stripe,
                Box::new(move |stripe: &mut Stripe| {
                    // The whole of the part moves in, not only its fields, some of which are pointers.
                    let part = part;
                    let functions = &shared.functions;
                    if let Some(set) = functions.cuCtxSetCurrent {
                        // SAFETY: the context is current in the lane that waits for this.
                        unsafe { set(context as *mut c_void) };
                    }
                    // SAFETY: as for a lane's own copies.
                    let result = unsafe {
                        if !copies {
                            stripe.lane.skip(part.bytes).map(|()| 0)
                        } else if upload {
                            stripe.copier.upload(functions, &mut stripe.lane, part, true)
                        } else {
                            stripe.copier.download(functions, &mut stripe.lane, part)
                        }
                    };
                    let result = result.and_then(|status| stripe.lane.flush().map(|()| status));
                    let _ = done.send(result);
                }),
            )?;
        }
        drop(done);
        let mut status = 0;
        for result in ends {
            let of_part = result?;
            status = if status == 0 { of_part } else { status };
        }
        Ok(status)
    }
}
