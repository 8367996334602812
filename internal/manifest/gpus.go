package manifest

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

var (
	gpuText   = regexp.MustCompile(api.GPUPattern)
	modelText = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9 ._+-]{0,62}$`)
	// profileText is the size of a slice of a GPU, such as 1g.18gb, and almostProfile what was meant as one.
	profileText   = regexp.MustCompile(api.MIGProfilePattern)
	almostProfile = regexp.MustCompile(`^(mig-.*|([0-9]c\.)?[0-9]g(\.[0-9]+gb.*)?)$`)
)

// possibleGPUs says what of GPUs can be had.
const possibleGPUs = `write their number, as in "2", number and kind, as in "1:H200" (words of the model's name) or "1:80GiB" (least memory), "1:mig" or "1:mig:1g.10gb" for a slice, "1:remote:8GiB" for 8 GiB of a GPU of any node, or "1:any:8GiB" for a whole one with 8 GiB where one is free, and else 8 GiB of any`

// gpu moves what a group asks for as GPUs to its devices, before all others.
func (n *normalizer) gpu(path string, g api.Group) api.Group {
	text := string(g.GPU)
	g.GPU = ""
	if text == "" && !n.src.Has(path) {
		return g
	}
	count, kind, _ := strings.Cut(text, ":")
	way, rest, _ := strings.Cut(kind, ":")
	r := api.DeviceRequest{Class: api.ClassGPU, Way: api.WayWhole}
	switch word := strings.ToLower(way); {
	case almostProfile.MatchString(word):
		n.add(path, text, `%q is no request for GPUs; slices are requested by "1:mig", "1:mig:1g.10gb" for one of that profile, or "1:mig:9GiB" for one with so much memory`, api.Shorten(text, 64))
		return g
	case !gpuText.MatchString(text):
		n.add(path, text, "%q is no request for GPUs; %s", api.Shorten(text, 64), possibleGPUs)
		return g
	case word == api.WayMIG:
		var err error
		if r.Profile, r.Memory, kind, err = slice(rest); err != nil {
			n.add(path, text, `%q does not say which slices would do: %v; write "1:mig", "1:mig:1g.10gb" for one of that profile, "1:mig:9GiB" for one with so much memory, and a kind behind, as in "1:mig:1g.10gb:H100"`, api.Shorten(text, 64), err)
			return g
		}
		r.Way = api.WayMIG
	case word == api.WayRemote:
		size, model, _ := strings.Cut(rest, ":")
		memory, err := api.ParseBytes(size)
		if err != nil || memory < minRemote || memory > maxMemory {
			n.add(path, text, `%q does not say how much memory of a GPU each member gets, at least %s; write "1:remote:8GiB", or "1:remote:8GiB:H200" for a kind`, api.Shorten(text, 64), minRemote)
			return g
		}
		r.Way, r.Remote, r.Memory, kind = api.WayRemote, true, memory, model
	case word == api.WayAny:
		memory, model, err := anyGPU(rest)
		if err != nil {
			n.add(path, text, `%q does not say which GPU would do: %v; write "1:any", or "1:any:8GiB" for so much memory, or "1:any:8GiB:H200" for a kind, too`, api.Shorten(text, 64), err)
			return g
		}
		r.Way, r.Remote, r.Memory, kind = api.WayAny, true, memory, model
	case rest != "":
		n.add(path, text, "%q is no request for GPUs; %s", api.Shorten(text, 64), possibleGPUs)
		return g
	case word == api.WayWhole:
		kind = ""
	}
	r.Count, _ = strconv.Atoi(count)
	if r.Count < 1 || r.Count > MaxDevices {
		n.add(path, text, "%d GPUs are not possible; give 1 to %d for each member", r.Count, MaxDevices)
		return g
	}
	if kind != "" && kind[0] >= '0' && kind[0] <= '9' && r.Memory == 0 && r.Way == api.WayWhole {
		if memory, err := api.ParseBytes(kind); err == nil && memory > maxDigit {
			r.Memory, kind = memory, ""
		}
	}
	r.Model = kind
	if slices.ContainsFunc(g.Devices, func(d api.DeviceRequest) bool { return d.Class == api.ClassGPU }) {
		n.add(path, text, "conflicts with the group's devices of class %s; write all GPUs there, and omit this", api.ClassGPU)
	}
	n.gpuHolder(path, g, r)
	r.Way = wholeFor(g.Stack, r.Way)
	g.Devices = slices.Insert(slices.Clone(g.Devices), 0, r)
	return g
}

// anyGPU reads the memory that any GPU must have, and its kind.
func anyGPU(text string) (memory api.Bytes, model string, err error) {
	if text == "" {
		return defaultAny, "", nil
	}
	size, model, _ := strings.Cut(text, ":")
	memory, err = api.ParseBytes(size)
	if err == nil && (memory < minRemote || memory > maxMemory) {
		err = fmt.Errorf("%s of memory is not between %s and %s", memory, minRemote, maxMemory)
	}
	return memory, model, err
}

// slice reads which slices of GPUs would do: those of a profile, or with so much memory, of a GPU of a kind.
func slice(text string) (profile string, memory api.Bytes, model string, err error) {
	first, rest, more := strings.Cut(text, ":")
	bytes, noSize := api.ParseBytes(first)
	switch {
	case text == "":
		return "", 0, "", nil
	case profileText.MatchString(strings.ToLower(first)):
		return strings.ToLower(first), 0, rest, nil
	case almostProfile.MatchString(strings.ToLower(first)):
		return "", 0, "", fmt.Errorf("%q is no profile", first)
	case noSize == nil && bytes > maxDigit && bytes <= maxMemory:
		return "", bytes, rest, nil
	case more:
		return "", 0, "", fmt.Errorf("%q is neither a profile nor a size of memory", first)
	default:
		return "", 0, first, nil
	}
}

// defaultAny is the memory of any GPU where a request does not say how much.
const defaultAny = api.Bytes(1 << 30)

// minRemote is the least memory of a remote GPU that is of any use.
const minRemote = api.Bytes(16 << 20)

// maxDigit is above what is the number of a model, such as 4090, and no size of memory.
const maxDigit = 1 << 20

// wholeFor is the way in which members on a stack get whole GPUs: by the node's driver, or, in virtual machines, as PCI devices.
func wholeFor(stack api.Stack, way string) string {
	if way == api.WayWhole {
		return api.WholeWay(stack)
	}
	return way
}

// gpuHolder refuses GPUs for members that can't have them.
func (n *normalizer) gpuHolder(path string, g api.Group, r api.DeviceRequest) {
	switch {
	case r.Way == api.WayMIG && g.Stack == api.StackVM:
		n.add(path, r.Way, "members on the stack %q get no slices of GPUs (a slice is no PCI device of its own); write the number of whole ones, or use the stack %q", g.Stack, api.StackContainer)
	case r.Way == api.WayMIG && g.Stack != api.StackContainer:
		n.add(path, string(g.Stack), "members on the stack %q get no slices of GPUs (nobody divides the GPUs of a machine that one member has); use the stack %q", g.Stack, api.StackContainer)
	case g.Stack != api.StackContainer && g.Stack != api.StackVM:
		n.add(path, string(g.Stack), "members on the stack %q get no GPUs yet; use the stack %q or %q", g.Stack, api.StackContainer, api.StackVM)
	case g.Spares > 0:
		n.add(path, strconv.Itoa(g.Spares), "a spare can't hold a GPU for its member; omit the spares")
	}
}
