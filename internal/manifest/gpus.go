package manifest

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

var (
	gpuText   = regexp.MustCompile(api.GPUPattern)
	modelText = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9 ._+-]{0,62}$`)
	// sliceText is the size of a slice of a GPU, such as 1g.18gb.
	sliceText = regexp.MustCompile(`^[0-9]g(\.[0-9]+gb.*)?$`)
)

// possibleGPUs says what of GPUs can be had.
const possibleGPUs = `write their number, as in "2", or number and kind, as in "1:H200" (words of the model's name) or "1:80GiB" (least memory): members get whole GPUs of their own nodes`

// gpu moves what a group asks for as GPUs to its devices, before all others.
func (n *normalizer) gpu(path string, g api.Group) api.Group {
	text := string(g.GPU)
	g.GPU = ""
	if text == "" && !n.src.Has(path) {
		return g
	}
	count, kind, _ := strings.Cut(text, ":")
	switch word := strings.ToLower(kind); {
	case word == "remote":
		n.add(path, text, "GPUs over the network are not handed out yet; %s", possibleGPUs)
		return g
	case word == "mig" || strings.HasPrefix(word, "mig-") || sliceText.MatchString(word):
		n.add(path, text, "slices of GPUs (MIG) are not handed out yet; %s", possibleGPUs)
		return g
	case !gpuText.MatchString(text):
		n.add(path, text, "%q is no request for GPUs; %s", api.Shorten(text, 64), possibleGPUs)
		return g
	}
	number, _ := strconv.Atoi(count)
	if number < 1 || number > MaxDevices {
		n.add(path, text, "%d GPUs are not possible; give 1 to %d for each member", number, MaxDevices)
		return g
	}
	r := api.DeviceRequest{Class: api.ClassGPU, Way: api.WayWhole, Count: number}
	if kind != "" && kind[0] >= '0' && kind[0] <= '9' {
		if memory, err := api.ParseBytes(kind); err == nil && memory > maxDigit {
			r.Memory = memory
		}
	}
	if r.Memory == 0 {
		r.Model = kind
	}
	if slices.ContainsFunc(g.Devices, func(d api.DeviceRequest) bool { return d.Class == api.ClassGPU }) {
		n.add(path, text, "conflicts with the group's devices of class %s; write all GPUs there, and omit this", api.ClassGPU)
	}
	n.gpuHolder(path, g)
	g.Devices = slices.Insert(slices.Clone(g.Devices), 0, r)
	return g
}

// maxDigit is above what is the number of a model, such as 4090, and no size of memory.
const maxDigit = 1 << 20

// gpuHolder refuses GPUs of the node for members that can't have any.
func (n *normalizer) gpuHolder(path string, g api.Group) {
	switch {
	case g.Stack != api.StackContainer:
		n.add(path, string(g.Stack), "members on the stack %q get no GPUs yet; use the stack %q", g.Stack, api.StackContainer)
	case g.Spares > 0:
		n.add(path, strconv.Itoa(g.Spares), "a spare can't hold a GPU for its member; omit the spares")
	}
}
