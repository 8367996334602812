package placement

import "github.com/nearmetal/nearmetal/api"

// What a server costs is expected by an average kernel: how often its calls wait for an answer, and how much it copies. The numbers are medians of the eight
// kernels on an H200 (docs/results/gpu-remote-h200.md), of the size that a study published: 5 ms of work, some 22 MiB of copies and ten calls that wait.
// What the expectation was stays with the claim, so that it can be compared with what is measured later (nearmetal measure gpu --member).
const (
	kernelSeconds = 5e-3
	kernelBytes   = 22 << 20
	kernelWaits   = 10
)

// waitSeconds is what a call waits longer than locally, by the distance of the server: the two processes' own part, as measured, and what switches add.
var waitSeconds = [...]float64{sameNode: 1.5e-6, sameLeaf: 25e-6, samePod: 35e-6, elsewhere: 60e-6}

const (
	// memoryRate is how fast copies cross memory that client and server share, beyond what the copy to the GPU takes; tcpRate is that of streams by TCP on a
	// network that is no limit. Both are as measured, in bytes a second. unknownRate is that of a link whose rate nobody knows, in bits a second.
	memoryRate  = 90e9
	tcpRate     = 7e9
	unknownRate = 10e9
	// busy is the part of the time in which another member of a GPU is taken to use it.
	busy = 0.5
)

// serverCost is how many times as long as on a local GPU an average kernel takes by a server. The rate of the links between is in bits a second; sharers are
// how many other members have parts of the GPU.
func serverCost(distance int, rate int64, sharers int) float64 {
	copies := memoryRate
	if distance != sameNode {
		copies = min(tcpRate, float64(rate)/8)
	}
	return (1 + (kernelWaits*waitSeconds[distance]+kernelBytes/copies)/kernelSeconds) * (1 + busy*float64(sharers))
}

// leastCost is what no server at a distance costs less than.
func leastCost(distance int) float64 { return serverCost(distance, 1<<62, 0) }

// linkRate is the rate of a node's fastest link to an Ethernet fabric, which its underlay is taken to be on.
func (v *View) linkRate(id int32) (rate int64) {
	for _, c := range v.platforms.values[v.rows[id].platform].connected {
		if c.Technology == api.FabricEthernet {
			rate = max(rate, c.RateBitsPerSecond)
		}
	}
	if rate == 0 {
		return unknownRate
	}
	return rate
}
