package shaper

import (
	"encoding/binary"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
)

// leastBurst holds the largest packet that a member sends: 64 KiB and headers. A queue passes as much at once after a rest.
const leastBurst = 128 << 10

// burst is how many bytes a queue of a rate, in bytes per second, passes at once: those of a millisecond, in which no timer needs to run.
func burst(rate uint64) uint64 { return max(leastBurst, rate/1000) }

// backlog is how many bytes may wait: those of 50 ms, but for the slowest and the fastest.
func backlog(rate uint64) uint64 { return min(max(4*leastBurst, rate/20), 64<<20) }

// ticks is the time of a burst in the kernel's unit, 64 ns (PSCHED_SHIFT of net/pkt_sched.h).
func ticks(rate uint64) uint32 { return uint32(burst(rate) * 1e9 / 64 / rate) }

// quantum is how many bytes a class sends in its turn, when classes share what is left over their minimums: in proportion to these.
func quantum(rate uint64) uint32 { return uint32(min(max(1514, rate/500), 64<<20)) }

// tc_htb_copt of linux/pkt_sched.h: two times tc_ratespec, and then buffer, cbuffer, quantum, level and prio.
const (
	ratespecSize   = 12
	linkLayerAt    = 1
	ratespecRateAt = 8
	htbBuffersAt   = 2 * ratespecSize
	htbSize        = htbBuffersAt + 20
	ethernet       = 1 // TC_LINKLAYER_ETHERNET: the kernel computes, and needs no tables
)

// classOptions are the options of a class with these rates in bits per second.
func classOptions(minimum, maximum int64) []*nl.RtAttr {
	low, high := uint64(minimum/8), uint64(maximum/8)
	parameters := make([]byte, htbSize)
	for i, rate := range []uint64{low, high} {
		parameters[i*ratespecSize+linkLayerAt] = ethernet
		binary.NativeEndian.PutUint32(parameters[i*ratespecSize+ratespecRateAt:], uint32(min(rate, 1<<32-1)))
		binary.NativeEndian.PutUint32(parameters[htbBuffersAt+4*i:], ticks(rate))
	}
	binary.NativeEndian.PutUint32(parameters[htbBuffersAt+8:], quantum(low))
	return []*nl.RtAttr{
		nl.NewRtAttr(nl.TCA_HTB_PARMS, parameters), nl.NewRtAttr(nl.TCA_HTB_RATE64, nl.Uint64Attr(low)), nl.NewRtAttr(nl.TCA_HTB_CEIL64, nl.Uint64Attr(high)),
	}
}

// readClass returns the rates of a class in bits per second, and whether the rest of its options is as classOptions has it.
func readClass(options []byte) (minimum, maximum int64, whole bool) {
	attrs, err := nl.ParseRouteAttrAsMap(options)
	parameters := attrs[nl.TCA_HTB_PARMS].Value
	if err != nil || len(parameters) < htbSize {
		return 0, 0, false
	}
	rate := func(i int, attr uint16) uint64 {
		if large := attrs[attr].Value; len(large) == 8 {
			return binary.NativeEndian.Uint64(large)
		}
		return uint64(binary.NativeEndian.Uint32(parameters[i*ratespecSize+ratespecRateAt:]))
	}
	word := func(at int) uint32 { return binary.NativeEndian.Uint32(parameters[htbBuffersAt+at:]) }
	low, high := rate(0, nl.TCA_HTB_RATE64), rate(1, nl.TCA_HTB_CEIL64)
	if low == 0 || high == 0 {
		return 0, 0, false
	}
	whole = word(0) == ticks(low) && word(4) == ticks(high) && word(8) == quantum(low)
	return int64(low) * 8, int64(high) * 8, whole
}

// queueOptions are those of the queue of a class with this maximum in bits per second: tc_fifo_qopt.
func queueOptions(maximum int64) []byte {
	return binary.NativeEndian.AppendUint32(nil, uint32(backlog(uint64(maximum/8))))
}

func handle(major, minor uint16) uint32 { return netlink.MakeHandle(major, minor) }

// tc_tbf_qopt of linux/pkt_sched.h: two times tc_ratespec, and then limit, buffer and mtu.
const tbfSize = 2*ratespecSize + 12

// readTBF returns the rate of a port's queue in bits per second, and whether the rest of it is as tbfOf has it.
func readTBF(q object) (rate int64, whole bool) {
	attrs, err := nl.ParseRouteAttrAsMap(q.options)
	parameters := attrs[nl.TCA_TBF_PARMS].Value
	if err != nil || q.kind != "tbf" || len(parameters) < tbfSize {
		return 0, false
	}
	bytes := uint64(binary.NativeEndian.Uint32(parameters[ratespecRateAt:]))
	if large := attrs[nl.TCA_TBF_RATE64].Value; len(large) == 8 {
		bytes = binary.NativeEndian.Uint64(large)
	}
	if bytes == 0 {
		return 0, false
	}
	want := tbfOf(int64(bytes) * 8)
	limit, buffer := binary.NativeEndian.Uint32(parameters[2*ratespecSize:]), binary.NativeEndian.Uint32(parameters[2*ratespecSize+4:])
	return int64(bytes) * 8, want.Limit == limit && want.Buffer == buffer
}
