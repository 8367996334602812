package build

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/environment/recipe"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/initrd"
	"github.com/nearmetal/nearmetal/internal/machine/kernelmodule"
)

// metal takes the kernel out of the tree and makes its initrd. The modules stay in the root, for all that a running machine may need.
func (w *worker) metal(ctx context.Context) error {
	root, err := os.OpenRoot(w.tree)
	if err != nil {
		return err
	}
	defer root.Close()
	version, err := kernelVersion(root)
	if err != nil {
		return err
	}
	modules, err := w.safeModules(root, version)
	if err != nil {
		return err
	}
	m := &image.Metal{KernelVersion: version, Arguments: w.Recipe.Kernel.Arguments}
	index, err := kernelmodule.ReadIndex(filepath.Join(modules, "lib/modules", version))
	if err != nil {
		return fmt.Errorf("the kernel's modules: %w", err)
	}
	m.Drivers = slices.DeleteFunc(index.Drivers(), func(name string) bool { // the indexes name modules that the recipe excludes, too
		file := index.File(name)
		if file == "" {
			return false // built in
		}
		_, err := os.Lstat(filepath.Join(modules, "lib/modules", version, file))
		return errors.Is(err, fs.ErrNotExist)
	})
	kernel, err := openKernel(root, version)
	if err != nil {
		return err
	}
	defer kernel.Close()
	if m.Kernel, err = w.keep(func(to io.Writer) error { _, err := io.Copy(to, kernel); return err }); err != nil {
		return fmt.Errorf("read the kernel: %w", err)
	}
	w.say("initrd", 71)
	m.Initrd, err = w.keep(func(to io.Writer) error {
		_, err := initrd.Build(ctx, to, initrd.Config{
			Root: modules, KernelVersion: version,
			Small: w.Recipe.Root.Format != recipe.NoRoot, // a root has the other drivers
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("make the initrd: %w", err)
	}
	w.manifest.Metal = m
	return removeKernel(root)
}

// kernelVersion is the version of the only kernel in a tree.
func kernelVersion(root *os.Root) (string, error) {
	entries, err := fs.ReadDir(root.FS(), "lib/modules")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	var versions []string
	for _, e := range entries {
		if e.IsDir() {
			versions = append(versions, e.Name())
		}
	}
	switch len(versions) {
	case 0:
		return "", failf("no kernel for metal: the root has no modules below /lib/modules; give kernel.package, for example linux-image-amd64")
	case 1:
		return versions[0], nil
	}
	return "", failf("the root has modules of several kernels (%s); install only one", strings.Join(versions, ", "))
}

func openKernel(root *os.Root, version string) (*os.File, error) {
	for _, name := range []string{"boot/vmlinuz-" + version, "lib/modules/" + version + "/vmlinuz"} {
		if f, err := root.Open(name); err == nil {
			return f, nil
		}
	}
	return nil, failf("no kernel for metal: the modules of version %[1]s have no /boot/vmlinuz-%[1]s", version)
}

// safeModules shows the modules alone in a tree of their own, without links that could lead to files of the node, and returns that tree.
func (w *worker) safeModules(root *os.Root, version string) (string, error) {
	dir, err := root.Open("lib/modules/" + version)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	tree := filepath.Join(w.tmp, "modules")
	target := filepath.Join(tree, "lib/modules", version)
	if err := os.MkdirAll(target, 0o755); err != nil {
		return "", err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), target, "", unix.MS_BIND, ""); err != nil {
		return "", fmt.Errorf("mount the kernel's modules: %w", err)
	}
	err = filepath.WalkDir(target, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Type().IsRegular() {
			return err
		}
		if name := strings.TrimPrefix(path, target+"/"); name != "build" && name != "source" {
			return failf("/lib/modules/%s/%s is not a regular file, so it can't be in an initrd", version, name)
		}
		return nil
	})
	return tree, err
}

// removeKernel takes out of the root what a machine that runs it has no use for: it was booted with kernel and initrd from outside.
func removeKernel(root *os.Root) error {
	entries, err := fs.ReadDir(root.FS(), "boot")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	names := []string{"vmlinuz", "vmlinuz.old", "initrd.img", "initrd.img.old"}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "config-") {
			names = append(names, "boot/"+e.Name())
		}
	}
	for _, name := range names {
		if err := root.RemoveAll(name); err != nil {
			return err
		}
	}
	return nil
}
