// Package recipe reads what an environment is made of: a YAML text, strictly, with every problem found at once, each with its line and what
// to do, and brought into its normal form.
//
// It is pure: it never looks whether a package, a file or an environment exists; the builder does. Start with Parse and Recipe.
package recipe

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// Recipe is what an environment is made of, in its normal form: lists that have no order are sorted, defaults are filled in.
type Recipe struct {
	// Name is the environment's, a DNS label.
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Base        Base   `json:"base"`
	// Packages are installed with what they depend on, and nothing that they merely recommend. NAME, or NAME=VERSION.
	Packages []string `json:"packages,omitempty"`
	// Exclude are patterns (glob(7), where '*' matches '/' too) of absolute paths that packages do not install.
	Exclude []string `json:"exclude,omitempty"`
	Files   []File   `json:"files,omitempty"`
	// Commands are run by /bin/sh -e in the root, one after the other, as its root, without a network.
	Commands []string `json:"commands,omitempty"`
	// CommandLines are the lines of the text that Commands begin in. They say nothing of what is made: no digest covers them.
	CommandLines []int  `json:"-"`
	Kernel       Kernel `json:"kernel,omitzero"`
	// Requirements are what machines must have.
	Requirements api.Requirements `json:"requirements,omitzero"`
	// Stacks are those it can be carried on; of a layer, empty: those of its base.
	Stacks []api.Stack `json:"stacks,omitempty"`
	Root   Root        `json:"root,omitzero"`
	// Services are what the packages carry and clusters set up in members that have it. A layer has those of its base, too.
	Services []api.Service `json:"services,omitempty"`
	// Disk says how the base's disk is run.
	Disk Disk `json:"disk,omitzero"`
	// Changes is an archive of the files that a member changed in its root, by digest, which 'cluster save --files' has stored; the recipe makes a layer of them
	// and of nothing else. KeepKeys are the files in it that may be private keys.
	Changes  string   `json:"changes,omitempty"`
	KeepKeys []string `json:"keep_keys,omitempty"`
	// Layers are environments on the same base whose own layers are laid over it, the last one on top, below what this recipe adds.
	Layers []string `json:"layers,omitempty"`
}

// Base is what everything stands on: exactly one of Debian, OCI, Directory, Environment and Disk.
type Base struct {
	// Debian is a release by its code name, made by mmdebstrap.
	Debian string `json:"debian,omitempty"`
	// Mirror of the release, a URL; empty: what the builder node's own apt uses. A snapshot's makes builds the same for ever.
	Mirror string `json:"mirror,omitempty"`
	// Components of the release, main unless given; non-free-firmware has what some adapters need.
	Components []string `json:"components,omitempty"`
	// OCI is PATH[@TAG] of an archive, an OCI image layout or what "docker save" writes, below the builder node's source directory.
	OCI string `json:"oci,omitempty"`
	// Directory is a tree below the builder node's source directory.
	Directory string `json:"directory,omitempty"`
	// Environment is another environment: the recipe makes a library layer over it.
	Environment string `json:"environment,omitempty"`
	// Disk is the digest, sha256:HEX, of the disk image of another system, which was uploaded before.
	Disk string `json:"disk,omitempty"`
}

// File is a file put into the root, after the packages and before the commands.
type File struct {
	Path string `json:"path"`
	// Content is the file's; or Source a path below the builder node's source directory.
	Content string `json:"content,omitempty"`
	Source  string `json:"source,omitempty"`
	// Mode is octal, four digits; 0644 unless given.
	Mode string `json:"mode,omitempty"`
}

// Kernel is what machines boot; without a package there is none.
type Kernel struct {
	// Package is installed like the others; KernelInstalled: the base has one already.
	Package string `json:"package,omitempty"`
	// Arguments are added to its command line, those of a library layer after those of its base.
	Arguments string `json:"arguments,omitempty"`
}

// NoRoot is the format of an environment that is kernel and initrd only: the initrd does all there is to do.
const NoRoot = "none"

// KernelInstalled stands for the kernel that is in the base already.
const KernelInstalled = "installed"

// Root is the form of the root's image.
type Root struct {
	Format      string `json:"format,omitempty"`
	Compression string `json:"compression,omitempty"`
}

// Parse reads a recipe and normalizes it. The error is a *manifest.Invalid that names every problem.
func Parse(text []byte) (*Recipe, error) {
	r, source, err := manifest.DecodeText[Recipe](text)
	if err != nil {
		return nil, err
	}
	c := checker{source: source, recipe: &r}
	c.check()
	if len(c.problems) > 0 {
		return nil, c.invalid()
	}
	for i := range r.Commands {
		r.CommandLines = append(r.CommandLines, source.Line(fmt.Sprintf("commands[%d]", i)))
	}
	r.normalize()
	return &r, nil
}

// normalize brings a checked recipe into its normal form.
func (r *Recipe) normalize() {
	r.Packages = sortedSet(r.Packages)
	r.Stacks = sortedSet(r.Stacks)
	r.Services = sortedSet(r.Services)
	r.Base.Components = sortedSet(r.Base.Components)
	r.KeepKeys = sortedSet(r.KeepKeys)
	if r.Base.Debian != "" && len(r.Base.Components) == 0 {
		r.Base.Components = []string{"main"}
	}
	r.Requirements.CPUFlags = sortedSet(r.Requirements.CPUFlags)
	r.Requirements.Devices = sortedSet(r.Requirements.Devices)
	r.Exclude, r.Files, r.Commands, r.Layers = orNone(r.Exclude), orNone(r.Files), orNone(r.Commands), orNone(r.Layers)
	if r.Kernel.Package == "none" {
		r.Kernel.Package = ""
	}
	r.Stacks = r.defaultStacks()
	if r.Base.Disk != "" {
		r.normalizeDisk()
		return
	}
	if r.Root.Format == "" {
		r.Root.Format = DefaultFormat
	}
	if r.Root.Compression == "" && r.Root.Format != NoRoot {
		r.Root.Compression = compressions[r.Root.Format][0]
	}
	for i := range r.Files {
		f := &r.Files[i]
		mode, _ := parseMode(f.Mode) // checked before
		f.Mode = fmt.Sprintf("%04o", mode)
	}
}

// defaultStacks are those given; else all that the recipe gives what they need.
func (r *Recipe) defaultStacks() []api.Stack {
	if len(r.Stacks) > 0 || r.Base.Environment != "" {
		return r.Stacks
	}
	if r.Base.Disk != "" {
		return []api.Stack{api.StackVM}
	}
	var all []api.Stack
	if r.Root.Format != NoRoot {
		all = append(all, api.StackContainer)
	}
	if r.Kernel.Package != "" {
		all = append(all, api.StackMetal)
	}
	if r.Root.Format != NoRoot && r.Kernel.Package != "" {
		all = append(all, api.StackVM)
	}
	return all
}

// orNone makes an empty list none.
func orNone[T any](list []T) []T {
	if len(list) == 0 {
		return nil
	}
	return list
}

// sortedSet sorts without duplicates; nil when empty.
func sortedSet[T ~string](list []T) []T {
	if len(list) == 0 {
		return nil
	}
	list = slices.Clone(list)
	slices.Sort(list)
	return slices.Compact(list)
}

// Digest is that of the normal form, sha256:HEX: recipes that differ in comments, order or spelling only share it.
func (r *Recipe) Digest() string { return r.DigestOn(nil) }

// DigestOn is the digest of the recipe together with the image digests of the environments it stands on, by their names (see Needs).
func (r *Recipe) DigestOn(images map[string]string) string {
	h := sha256.New()
	form, err := json.Marshal(r)
	if err != nil { // strings, numbers and lists of them can always be written
		panic(err)
	}
	fmt.Fprintf(h, "nearmetal recipe 1\n%s\n", form)
	for _, name := range slices.Sorted(maps.Keys(images)) {
		fmt.Fprintf(h, "%s %s\n", name, images[name])
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// Needs are the names of the environments that must have been built before, the base first.
func (r *Recipe) Needs() []string {
	if r.Base.Environment == "" {
		return nil
	}
	return append([]string{r.Base.Environment}, r.Layers...)
}

// Local tells that the recipe takes in files of the builder node, whose content its digest does not tell.
func (r *Recipe) Local() bool {
	return r.Base.OCI != "" || r.Base.Directory != "" || slices.ContainsFunc(r.Files, func(f File) bool { return f.Source != "" })
}
