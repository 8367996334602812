package manifest

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
)

const (
	// MaxDeviceRequests is how many requests for devices a group may have, MaxDevices how many parts each may ask for.
	MaxDeviceRequests = 8
	MaxDevices        = 64
)

// devices checks what a group asks for of devices.
func (n *normalizer) devices(path string, requests []api.DeviceRequest) []api.DeviceRequest {
	if len(requests) > MaxDeviceRequests {
		n.add(path, strconv.Itoa(len(requests)), "has %d requests; at most %d are possible", len(requests), MaxDeviceRequests)
		return requests
	}
	requests = slices.Clone(requests)
	for i := range requests {
		r, at := &requests[i], fmt.Sprintf("%s[%d]", path, i)
		n.label(at+".class", r.Class, MaxLabel)
		n.label(at+".way", r.Way, MaxLabel)
		n.atLeast(at+".count", &r.Count, 1, MaxDevices, "part")
		if !r.Remote {
			n.add(at+".remote", "false", "must be true: devices can only be requested from any node, nearest first")
		}
	}
	return requests
}
