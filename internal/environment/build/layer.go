package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/environment/recipe"
	"github.com/nearmetal/nearmetal/internal/image"
)

// layer mounts the base with its layers, and over them an overlay whose upper directory, the root that is made here, gets what changes.
func (w *worker) layer(ctx context.Context) error {
	roots, err := w.below()
	if err != nil {
		return err
	}
	var lower []string
	for i, r := range roots {
		dir := filepath.Join(w.tmp, fmt.Sprintf("lower%d", i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if err := mountRoot(ctx, string(r.root.Format), filepath.Join(r.dir, r.root.Digest.Hex()), dir); err != nil {
			return fmt.Errorf("mount a root of the base: %w", err)
		}
		lower = append(lower, dir)
	}
	slices.Reverse(lower) // overlayfs wants the topmost first
	merged, work := filepath.Join(w.tmp, "merged"), filepath.Join(w.tmp, "work")
	for _, dir := range []string{merged, work} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	// Nothing may stand in the layer but files: no redirects, no metadata-only copies (Documentation/filesystems/overlayfs.rst).
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,redirect_dir=off,metacopy=off,index=off,xino=off", strings.Join(lower, ":"), w.root, work)
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount the layer over its base: %w", err)
	}
	w.tree = merged
	return nil
}

// mountRoot mounts the file of a root. mount(8) makes the loop device, and the kernel ends it with the mount.
func mountRoot(ctx context.Context, format, file, dir string) error {
	if text, err := exec.CommandContext(ctx, "mount", "-t", format, "-o", "ro,loop,nosuid,nodev", file, dir).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(text)))
	}
	return nil
}

// lowerRoot is a root below a layer, and the directory its blob is in.
type lowerRoot struct {
	root image.Root
	dir  string
}

// below are the roots that the layer is laid over, the lowest first: the base's, then those that the recipe's other layers add to it.
func (w *worker) below() ([]lowerRoot, error) {
	base := w.Bases[w.Recipe.Base.Environment]
	var all []lowerRoot
	for _, r := range base.Manifest.Roots() {
		all = append(all, lowerRoot{r, base.Blobs})
	}
	if base.Manifest.Root.Digest == "" {
		return nil, failf("environment %q can't be a base: it has no root", w.Recipe.Base.Environment)
	}
	common := len(all)
	for _, name := range w.Recipe.Layers {
		b := w.Bases[name]
		roots := b.Manifest.Roots()
		if len(roots) <= common || !slices.EqualFunc(roots[:common], all[:common], func(r image.Root, l lowerRoot) bool { return r.Digest == l.root.Digest }) {
			return nil, failf("environment %q was built over an earlier image of %q; build it again first", name, w.Recipe.Base.Environment)
		}
		for _, r := range roots[common:] {
			all = append(all, lowerRoot{r, b.Blobs})
		}
	}
	return all, nil
}

// baseDigests are the image digests of the environments that the recipe stands on.
func (w *worker) baseDigests() map[string]string {
	if len(w.Bases) == 0 {
		return nil
	}
	digests := map[string]string{}
	for _, name := range w.Recipe.Needs() {
		_, digest, err := w.Bases[name].Manifest.Encode()
		if err == nil { // it was decoded from JSON
			digests[name] = string(digest)
		}
	}
	return digests
}

// addArguments is a base's kernel with more arguments, after those it has.
func addArguments(base *image.Metal, more string) (*image.Metal, error) {
	switch {
	case more == "":
		return base, nil
	case base == nil:
		return nil, errors.New("has no kernel that they could be for; omit them")
	}
	m := *base
	m.Arguments = strings.TrimSpace(m.Arguments + " " + more)
	if len(m.Arguments) > recipe.MaxArgumentsLength {
		return nil, fmt.Errorf("has arguments too, and together they are %d characters long; at most %d fit", len(m.Arguments), recipe.MaxArgumentsLength)
	}
	return &m, nil
}

// inherit completes the manifest of a layer with what its base has.
func (w *worker) inherit(m *image.Manifest) error {
	if w.Recipe.Base.Environment == "" {
		return nil
	}
	roots, err := w.below()
	if err != nil {
		return err
	}
	base, own := w.Bases[w.Recipe.Base.Environment].Manifest, m.Root
	m.Root, m.Metal, m.Architecture = base.Root, base.Metal, base.Architecture
	if m.Metal, err = addArguments(base.Metal, w.Recipe.Kernel.Arguments); err != nil {
		return failf("kernel.arguments: base environment %q %v", w.Recipe.Base.Environment, err)
	}
	for _, r := range roots[1:] {
		m.Layers = append(m.Layers, r.root)
	}
	if own.Digest != "" {
		m.Layers = append(m.Layers, own)
	}
	if len(m.Stacks) == 0 {
		m.Stacks = base.Stacks
	}
	for _, s := range m.Stacks {
		if !slices.Contains(base.Stacks, s) {
			return failf("stack %s: base environment %q does not support it", s, w.Recipe.Base.Environment)
		}
	}
	m.Requirements = stricter(m.Requirements, base.Requirements)
	m.Services = union(m.Services, base.Services)
	for _, name := range w.Recipe.Layers {
		m.Services = union(m.Services, w.Bases[name].Manifest.Services)
	}
	return nil
}
