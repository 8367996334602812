//! Graphs and captures: lists of nodes, copies in graphs, and what streams capture.

use std::ffi::c_void;
use std::io;
use std::ptr::{null, null_mut};

use gpuremote_wire::{Decoder, Encoder, Malformed, MAX_ARGUMENT_BYTES};

use super::{calls, Server, INVALID_HANDLE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::worker::{Link, Outcome};

/// The most nodes or edges that a reply tells of: three lists of them fit a message.
const MOST_LISTED: usize = MAX_ARGUMENT_BYTES / 64;

/// What a node is added to, and after which nodes.
pub struct Place {
    graph: *mut c_void,
    after: Vec<*mut c_void>,
}

impl Place {
    /// Adds a node, whose number is the reply.
    pub fn add(
        &self,
        server: &Server,
        values: &mut Encoder,
        run: impl FnOnce(*mut u64, *mut c_void, *const u64, usize) -> i32,
    ) -> io::Result<Outcome> {
        let mut node = 0;
        let status = run(&mut node, self.graph, self.after.as_ptr().cast(), self.after.len());
        if status == 0 {
            values.u64(server.handles.number(calls::kinds::CUgraphNode, node as *mut c_void)?);
        }
        Ok(Outcome::Status(status))
    }
}

/// CUDA_MEMCPY3D of the driver API: both sides have 11 fields, then come the extents.
type Copy = [u64; 25];

/// CUmemorytype of the driver API.
const HOST: u64 = 1;
const DEVICE: u64 = 2;

impl Server {
    /// The place of a new node. None: a number stands for nothing.
    pub fn place(&self, decoder: &mut Decoder<'_>) -> Result<Option<Place>, Malformed> {
        let (graph, count) = (decoder.u64()?, decoder.u32()?);
        let mut after = Some(Vec::new());
        for _ in 0..count {
            let node = self.handles.get(calls::kinds::CUgraphNode, decoder.u64()?);
            after = after.and_then(|mut after: Vec<_>| node.map(|node| (after.push(node), after).1));
        }
        let graph = self.handles.get(calls::kinds::CUgraph, graph);
        Ok(graph.zip(after).map(|(graph, after)| Place { graph, after }))
    }

    /// A copy between places on the GPU and in shared host memory. Rows and slices must fit what they are in.
    fn copy(link: &Link<'_>, decoder: &mut Decoder<'_>) -> io::Result<Copy> {
        let mut sides = [[0u64; 4]; 2];
        for side in &mut sides {
            *side = [u64::from(decoder.u8()?), decoder.u64()?, decoder.u64()?, decoder.u64()?];
        }
        let [width, height, depth] = [decoder.u64()?, decoder.u64()?, decoder.u64()?];
        decoder.finish()?;
        let mut copy = [0; 25];
        for (i, [on_device, start, row, slice]) in sides.into_iter().enumerate() {
            let strange = Malformed("a box has strange extents");
            if width == 0 || height == 0 || depth == 0 || row < width || slice % row != 0 || slice / row < height {
                return Err(strange.into());
            }
            let last =
                slice.checked_mul(depth - 1).zip(row.checked_mul(height - 1)).and_then(|(z, y)| z.checked_add(y)?.checked_add(width));
            let bytes = last.and_then(|bytes| usize::try_from(bytes).ok()).ok_or(strange)?;
            let side = &mut copy[11 * i..11 * (i + 1)];
            if on_device == 0 {
                let start = usize::try_from(start).map_err(|_| Malformed("a place is outside the client's host memory"))?;
                side[4] = HOST;
                side[5] = Self::host_address(link, start, bytes)? as u64;
            } else {
                side[4] = DEVICE;
                side[6] = start;
            }
            side[9] = row;
            side[10] = slice / row;
        }
        copy[22..].copy_from_slice(&[width, height, depth]);
        Ok(copy)
    }

    /// Copies that a client's message asks for as a whole: those between two places on the GPU.
    pub unsafe fn cu_memcpy3_dasync_v2(&mut self, link: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let stream = decoder.u64()?;
        let copy = Self::copy(link, decoder)?;
        let Some(stream) = self.handles.get(calls::kinds::CUstream, stream) else { return Ok(Outcome::Status(INVALID_HANDLE)) };
        let Some(run) = self.functions.cuMemcpy3DAsync_v2 else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        Ok(Outcome::Status(run(copy.as_ptr().cast(), stream)))
    }

    pub unsafe fn cu_graph_add_memcpy_node(
        &mut self,
        link: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let (place, context) = (self.place(decoder)?, decoder.u64()?);
        let copy = Self::copy(link, decoder)?;
        let context = self.handles.get(calls::kinds::CUcontext, context);
        let (Some(place), Some(context)) = (place, context) else { return Ok(Outcome::Status(INVALID_HANDLE)) };
        let Some(add) = self.functions.cuGraphAddMemcpyNode else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        place.add(self, values, |node, graph, after, count| add(node, graph, after, count, copy.as_ptr().cast(), context))
    }

    pub unsafe fn cu_graph_exec_memcpy_node_set_params(
        &mut self,
        link: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        _: &mut Encoder,
    ) -> io::Result<Outcome> {
        let [executable, node, context] = [decoder.u64()?, decoder.u64()?, decoder.u64()?];
        let copy = Self::copy(link, decoder)?;
        let executable = self.handles.get(calls::kinds::CUgraphExec, executable);
        let node = self.handles.get(calls::kinds::CUgraphNode, node);
        let context = self.handles.get(calls::kinds::CUcontext, context);
        let (Some(executable), Some(node), Some(context)) = (executable, node, context) else {
            return Ok(Outcome::Status(INVALID_HANDLE));
        };
        let Some(set) = self.functions.cuGraphExecMemcpyNodeSetParams else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        Ok(Outcome::Status(set(executable, node, copy.as_ptr().cast(), context)))
    }

    /// Fills lists of a graph or a node: `run` gets the object, places for two lists of nodes and one of edges, and their length.
    unsafe fn list(
        &self,
        kind: usize,
        has: [bool; 3],
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
        run: impl FnOnce(*mut c_void, [*mut u64; 3], *mut usize) -> i32,
    ) -> io::Result<Outcome> {
        let (number, wants_edges, room) = (decoder.u64()?, decoder.u8()? != 0, decoder.usize()?);
        decoder.finish()?;
        let Some(object) = self.handles.get(kind, number) else { return Ok(Outcome::Status(INVALID_HANDLE)) };
        if room > MOST_LISTED {
            return Ok(Outcome::Status(OUT_OF_MEMORY));
        }
        let has = [has[0], has[1], has[2] && wants_edges];
        let mut lists = has.map(|has| vec![0u64; if has { room } else { 0 }]);
        let mut count = room;
        let places = [0, 1, 2].map(|i| if has[i] && room > 0 { lists[i].as_mut_ptr() } else { null_mut() });
        let status = run(object, places, &mut count);
        if status != 0 {
            return Ok(Outcome::Status(status));
        }
        values.usize(count);
        let filled = count.min(room);
        values.u32(filled as u32);
        for (i, list) in lists.iter().enumerate() {
            values.u8(has[i].into());
            for &value in list.iter().take(filled) {
                values.u64(if i < 2 { self.handles.number(calls::kinds::CUgraphNode, value as *mut c_void)? } else { value });
            }
        }
        Ok(Outcome::Status(0))
    }

    pub unsafe fn cu_graph_get_nodes(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, values: &mut Encoder) -> io::Result<Outcome> {
        let Some(run) = self.functions.cuGraphGetNodes else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        self.list(calls::kinds::CUgraph, [true, false, false], decoder, values, |graph, [nodes, _, _], count| run(graph, nodes, count))
    }

    pub unsafe fn cu_graph_get_root_nodes(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let Some(run) = self.functions.cuGraphGetRootNodes else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        self.list(calls::kinds::CUgraph, [true, false, false], decoder, values, |graph, [nodes, _, _], count| run(graph, nodes, count))
    }

    pub unsafe fn cu_graph_get_edges_v2(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let Some(run) = self.functions.cuGraphGetEdges_v2 else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        self.list(calls::kinds::CUgraph, [true; 3], decoder, values, |graph, [from, to, edges], count| run(graph, from, to, edges, count))
    }

    pub unsafe fn cu_graph_node_get_dependencies_v2(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let Some(run) = self.functions.cuGraphNodeGetDependencies_v2 else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let kind = calls::kinds::CUgraphNode;
        self.list(kind, [true, false, true], decoder, values, |node, [nodes, _, edges], count| run(node, nodes, edges, count))
    }

    pub unsafe fn cu_graph_node_get_dependent_nodes_v2(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let Some(run) = self.functions.cuGraphNodeGetDependentNodes_v2 else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let kind = calls::kinds::CUgraphNode;
        self.list(kind, [true, false, true], decoder, values, |node, [nodes, _, edges], count| run(node, nodes, edges, count))
    }

    /// The numbers of a graph's nodes end with it: the driver would take those of nodes that are gone for pointers.
    pub unsafe fn cu_graph_destroy(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let number = decoder.u64()?;
        decoder.finish()?;
        let Some(run) = self.functions.cuGraphDestroy else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let Some(graph) = self.handles.take(calls::kinds::CUgraph, number) else { return Ok(Outcome::Status(INVALID_HANDLE)) };
        if let Some(list) = self.functions.cuGraphGetNodes {
            let mut count = 0;
            if list(graph, null_mut(), &mut count) == 0 {
                let mut nodes = vec![0u64; count];
                if list(graph, nodes.as_mut_ptr(), &mut count) == 0 {
                    for node in nodes {
                        self.handles.forget(calls::kinds::CUgraphNode, node as *mut c_void);
                    }
                }
            }
        }
        Ok(Outcome::Status(run(graph)))
    }

    pub unsafe fn cu_graph_exec_update_v2(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let (executable, graph) = (decoder.u64()?, decoder.u64()?);
        decoder.finish()?;
        let executable = self.handles.get(calls::kinds::CUgraphExec, executable);
        let graph = self.handles.get(calls::kinds::CUgraph, graph);
        let (Some(executable), Some(graph)) = (executable, graph) else { return Ok(Outcome::Status(INVALID_HANDLE)) };
        let Some(run) = self.functions.cuGraphExecUpdate_v2 else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        // CUgraphExecUpdateResultInfo: the result, and two nodes.
        let mut result = [0u64; 3];
        values.i32(run(executable, graph, result.as_mut_ptr().cast()));
        values.i32(result[0] as i32);
        for node in &result[1..] {
            values.u64(self.handles.number(calls::kinds::CUgraphNode, *node as *mut c_void)?);
        }
        Ok(Outcome::Status(0))
    }

    pub unsafe fn cu_stream_get_capture_info_v3(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let stream = decoder.u64()?;
        decoder.finish()?;
        let Some(stream) = self.handles.get(calls::kinds::CUstream, stream) else { return Ok(Outcome::Status(INVALID_HANDLE)) };
        let Some(run) = self.functions.cuStreamGetCaptureInfo_v3 else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let (mut capturing, mut id, mut graph, mut after, mut edges, mut count) = (0, 0, 0u64, 0u64, 0u64, 0);
        let status = run(stream, &mut capturing, &mut id, &mut graph, &mut after, &mut edges, &mut count);
        if status != 0 {
            return Ok(Outcome::Status(status));
        }
        let list = |address: u64| if address == 0 { null() } else { address as *const u64 };
        let count = if capturing == 0 || list(after).is_null() { 0 } else { count.min(MOST_LISTED) };
        values.i32(capturing);
        values.u64(id);
        values.u64(if capturing == 0 { 0 } else { self.handles.number(calls::kinds::CUgraph, graph as *mut c_void)? });
        values.u32(count as u32);
        for i in 0..count {
            values.u64(self.handles.number(calls::kinds::CUgraphNode, *list(after).add(i) as *mut c_void)?);
        }
        let has_edges = count > 0 && !list(edges).is_null();
        values.u8(has_edges.into());
        for i in 0..if has_edges { count } else { 0 } {
            values.u64(*list(edges).add(i));
        }
        Ok(Outcome::Status(0))
    }
}
