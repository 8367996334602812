package build

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// What the recipe's commands leave behind is not trusted: a link in the tree may point anywhere. All this file does in the tree goes through
// os.Root, which does not follow links out of it.

// base makes what everything else stands on.
func (w *worker) base(ctx context.Context) error {
	switch b := w.Recipe.Base; {
	case b.Debian != "":
		return w.debian(ctx)
	case b.OCI != "":
		return w.oci(ctx)
	case b.Directory != "":
		return w.directory(ctx)
	}
	return w.layer(ctx)
}

// sourceRoot is the node's directory for what recipes name.
func (w *worker) sourceRoot(name string) (*os.Root, error) {
	if w.Sources == "" {
		return nil, failf("%q must be read from the builder node, but this node has no source directory; start its agent with one, or choose another node", name)
	}
	root, err := os.OpenRoot(w.Sources)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, failf("%q must be read below %s of the builder node, but that directory does not exist; make it and put the files there", name, w.Sources)
	}
	if err != nil {
		return nil, fmt.Errorf("the source directory of this node: %w", err)
	}
	return root, nil
}

// openSource opens what a recipe names below the node's source directory.
func (w *worker) openSource(name string) (*os.File, error) {
	root, err := w.sourceRoot(name)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.Open(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, failf("%q is not in the source directory of this builder node, %s; put it there", name, w.Sources)
	case err != nil:
		return nil, failf("%q can't be read below the source directory of this builder node, %s: %v", name, w.Sources, err)
	}
	return f, nil
}

// directory copies a tree of the node with owners, modes, links and extended attributes.
func (w *worker) directory(ctx context.Context) error {
	source, err := w.openSource(w.Recipe.Base.Directory)
	if err != nil {
		return err
	}
	defer source.Close()
	info, err := source.Stat()
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return failf("%q is not a directory; use base.oci for an archive", w.Recipe.Base.Directory)
	}
	last := &lastLines{log: w.log}
	cmd := exec.CommandContext(ctx, "cp", "-a", "--one-file-system", ".", w.root)
	cmd.Dir = fmt.Sprintf("/proc/self/fd/%d", source.Fd()) // it opens no path that could lead elsewhere by now, and its words name none
	cmd.Stdout, cmd.Stderr = last, last
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("copy %s: %w", w.Recipe.Base.Directory, last.explain(err))
	}
	return w.looksLikeARoot(w.Recipe.Base.Directory)
}

// looksLikeARoot refuses what nobody could run, and completes the rest.
func (w *worker) looksLikeARoot(name string) error {
	root, err := os.OpenRoot(w.root)
	if err != nil {
		return err
	}
	defer root.Close()
	if _, err := root.Stat("bin/sh"); err != nil {
		return failf("%q is not the root of a system: it has no /bin/sh", name)
	}
	return mountPoints(root)
}

// files puts the recipe's files into the tree.
func (w *worker) files(context.Context) error {
	root, err := os.OpenRoot(w.tree)
	if err != nil {
		return err
	}
	defer root.Close()
	for i, f := range w.Recipe.Files {
		content := io.Reader(strings.NewReader(f.Content))
		if f.Source != "" {
			source, err := w.openSource(f.Source)
			if err != nil {
				return err
			}
			defer source.Close()
			content = source
		}
		name := strings.TrimPrefix(f.Path, "/")
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return failf("files[%d]: the directory of %s can't be made: %v", i, f.Path, err)
		}
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return failf("files[%d]: %s already exists and can't be replaced: %v", i, f.Path, err)
		}
		target, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return failf("files[%d]: %s can't be made: %v", i, f.Path, err)
		}
		_, err = io.Copy(target, content)
		if err := errors.Join(err, chmod(target, f.FileMode()), target.Close()); err != nil {
			return fmt.Errorf("files[%d]: write %s: %w", i, f.Path, err)
		}
	}
	return nil
}

// packages installs into a base that is no fresh Debian release, by what it brings along.
func (w *worker) packages(ctx context.Context) (err error) {
	names := w.Recipe.Packages
	if kernel := w.kernelPackage(); kernel != "" {
		names = append(append([]string{}, names...), kernel)
	}
	root, err := os.OpenRoot(w.tree)
	if err != nil {
		return err
	}
	defer root.Close()
	if _, err := root.Stat("usr/bin/apt-get"); err != nil {
		return failf("packages can't be installed into this base: it has no apt-get; install them when the base is made, or use base.debian")
	}
	c, err := w.enter(true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.leave(c)) }()
	if text, err := os.ReadFile("/etc/resolv.conf"); err == nil {
		if c.binds["/etc/resolv.conf"], err = w.openFile("resolv.conf", text); err != nil {
			return err
		}
	}
	options := []string{"-o", "APT::Install-Recommends=false", "-o", "Acquire::Languages=none", "-o", "APT::Sandbox::User=root"}
	release := codeNameOf(root)
	if lines := w.nodeSources(ctx, release, []string{"main"}); len(lines) > 0 {
		if c.binds["/run/sources.list"], err = w.openFile("sources.list", []byte(strings.Join(lines, "\n")+"\n")); err != nil {
			return err
		}
		options = append(options, "-o", "Dir::Etc::sourcelist=/run/sources.list", "-o", "Dir::Etc::sourceparts=/dev/null")
	}
	watch := &aptWatch{log: w.log, say: func(done float64) { w.say("packages", 20+int(done*40)) }}
	for _, args := range [][]string{{"update"}, append([]string{"install", "--yes", "--no-install-recommends"}, names...)} {
		if err := w.run(ctx, c, watch, append(append([]string{"/usr/bin/apt-get"}, options...), args...)...); err != nil {
			return watch.explain(err, "the mirrors of this base")
		}
	}
	return nil
}

// openFile makes a file that the container's root can read.
func (w *worker) openFile(name string, text []byte) (string, error) {
	path := filepath.Join(w.open, name)
	return path, os.WriteFile(path, text, 0o644)
}

// codeNameOf is the release of a root, "" when it does not tell (os-release(5)).
func codeNameOf(root *os.Root) string {
	text, err := root.ReadFile("etc/os-release")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "VERSION_CODENAME="); ok {
			return strings.Trim(value, `"'`)
		}
	}
	return ""
}
