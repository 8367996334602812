package recipe

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

func (c *checker) kernel() {
	k := c.recipe.Kernel
	form := otherPackage
	if c.recipe.Base.Debian != "" {
		form = debianPackage
	}
	layer := c.recipe.Base.Environment != ""
	switch {
	case layer && (k.Package != "" || c.source.Has("kernel.package")):
		c.add("kernel.package", k.Package, "can't be set in a library layer: its kernel is that of environment %q; omit it", c.recipe.Base.Environment)
		return
	case layer: // its arguments follow those of its base
	case k.Package == "" && c.source.Has("kernel.package"):
		c.add("kernel.package", "", "is empty; give a package, for example linux-image-amd64, or none")
	case k.Package == "" && c.source.Has("kernel"):
		c.add("kernel.package", "", "is missing; give a package, for example linux-image-amd64, or none")
	case k.Package == KernelInstalled && c.recipe.Base.Debian != "":
		c.add("kernel.package", k.Package, "a Debian release has no kernel installed; give a package, for example linux-image-amd64")
	case k.Package != "" && !form.MatchString(k.Package):
		c.add("kernel.package", k.Package, "%q is not the name of a package", k.Package)
	}
	if k.Arguments != "" && !layer && (k.Package == "" || k.Package == "none") {
		c.add("kernel.arguments", k.Arguments, "have no effect without a kernel; give kernel.package")
	}
	switch {
	case len(k.Arguments) > MaxArgumentsLength:
		c.add("kernel.arguments", "", "are %d characters long; at most %d fit", len(k.Arguments), MaxArgumentsLength)
	case strings.ContainsAny(k.Arguments, "\n\r\x00"):
		c.add("kernel.arguments", "", "must be on one line")
	}
	for _, word := range strings.Fields(k.Arguments) {
		if strings.HasPrefix(word, "nearmetal.") || strings.HasPrefix(word, "initrd=") || strings.HasPrefix(word, "rdinit=") || strings.HasPrefix(word, "init=") {
			c.add("kernel.arguments", word, "%q is reserved for network boot; omit it", word)
		}
	}
}

var stacks = []string{string(api.StackContainer), string(api.StackMetal), string(api.StackVM)}

func (c *checker) stacks() {
	if len(c.recipe.Stacks) == 0 && c.source.Has("stacks") {
		c.add("stacks", "", "is an empty list; name the supported stacks, or omit the field")
	}
	for i, s := range c.recipe.Stacks {
		at := fmt.Sprintf("stacks[%d]", i)
		c.oneOf(at, string(s), "stack", stacks)
		kernel := c.recipe.Kernel.Package != "" && c.recipe.Kernel.Package != "none"
		if (s == api.StackMetal || s == api.StackVM) && !kernel && c.recipe.Base.Environment == "" {
			c.add(at, string(s), "no kernel for %s; add kernel: {package: linux-image-amd64}, or remove %s from the stacks", s, s)
		}
	}
}

func (c *checker) services() {
	for i, s := range c.recipe.Services {
		c.oneOf(fmt.Sprintf("services[%d]", i), string(s), "service", []string{string(api.ServiceSlurm)})
	}
}

func (c *checker) requirements() {
	q := c.recipe.Requirements
	if q.Architecture != "" {
		c.oneOf("requirements.architecture", q.Architecture, "architecture", architectures)
	}
	for i, flag := range q.CPUFlags {
		if !cpuFlag.MatchString(flag) {
			c.add(fmt.Sprintf("requirements.cpu_flags[%d]", i), flag, "%q is not a CPU flag; write it as /proc/cpuinfo does, for example avx2", flag)
		}
	}
	for i, d := range q.Devices {
		c.oneOf(fmt.Sprintf("requirements.devices[%d]", i), d, "class of devices", devices)
	}
	if q.Firmware != "" {
		c.oneOf("requirements.firmware", string(q.Firmware), "kind of firmware", []string{string(api.FirmwareBIOS), string(api.FirmwareUEFI)})
	}
}

func (c *checker) root() {
	r := c.recipe.Root
	formats := slices.Sorted(maps.Keys(compressions))
	format := r.Format
	if format == "" && !c.source.Has("root.format") {
		format = DefaultFormat
	} else if !c.oneOf("root.format", format, "format", formats) {
		return
	}
	if format == NoRoot {
		c.noRoot()
		return
	}
	if r.Compression != "" || c.source.Has("root.compression") {
		c.oneOf("root.compression", r.Compression, "compression for "+format, compressions[format])
	}
}

// noRoot checks a recipe for kernel and initrd only.
func (c *checker) noRoot() {
	r := c.recipe
	if r.Kernel.Package == "" || r.Kernel.Package == "none" {
		c.add("root.format", NoRoot, "an environment without a root needs a kernel; give kernel.package")
	}
	for i, s := range r.Stacks {
		if s != api.StackMetal {
			c.add(fmt.Sprintf("stacks[%d]", i), string(s), "an environment without a root supports only metal")
		}
	}
	if r.Root.Compression != "" {
		c.add("root.compression", r.Root.Compression, "has no effect without a root; omit it")
	}
	if len(r.Services) > 0 {
		c.add("services", "", "have no effect without a root; omit them")
	}
}

func (c *checker) layers() {
	r := c.recipe
	if len(r.Layers) > 0 && r.Base.Environment == "" {
		c.add("layers", "", "need a base environment; give base: {environment: NAME}")
	}
	if len(r.Layers) > maxLayers {
		c.add("layers", "", "has %d entries; at most %d are allowed", len(r.Layers), maxLayers)
		return
	}
	first := map[string]int{}
	for i, name := range r.Layers {
		at := fmt.Sprintf("layers[%d]", i)
		if problem := manifest.LabelProblem(name, maxNameLength); problem != "" {
			c.add(at, name, "%q %s", name, problem)
		} else if name == r.Name || name == r.Base.Environment {
			c.add(at, name, "%q is the %s; name environments that were built over the base", name, map[bool]string{true: "recipe itself", false: "base"}[name == r.Name])
		}
		if j, ok := first[name]; ok {
			c.add(at, name, "%q is the name of layers[%d], too; keep one", name, j)
		} else {
			first[name] = i
		}
	}
}

// oneOf refuses a value that is none of those there are.
func (c *checker) oneOf(at, value, what string, known []string) bool {
	if slices.Contains(known, value) {
		return true
	}
	hint := "use one of " + strings.Join(known, ", ")
	if closest := manifest.Closest(value, known); closest != "" && value != "" {
		hint = fmt.Sprintf("did you mean %q?", closest)
	}
	c.add(at, value, "%q is not a known %s; %s", value, what, hint)
	return false
}
