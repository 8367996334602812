package build

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/environment/recipe"
	"github.com/nearmetal/nearmetal/internal/image"
)

// epoch, 2025-01-01 00:00:00 UTC, is the newest time in an image: what a build makes itself gets it, in whatever year that was. It is a
// constant because anything else (the newest package, the mirror's date) would change images whose content did not.
const epoch = 1735689600

// worker is a build going on, in its own namespaces.
type worker struct {
	order
	words *json.Encoder
	log   io.Writer
	// root is the tree that is being made, tmp a directory for what is needed on the way, out gets the blobs.
	root, tmp, out string
	// tree is where commands run: root, or for a layer the overlay of which root is the upper directory.
	tree string
	// open is a directory that everybody may enter, in memory: what is below the scratch may be behind one that nobody may.
	open     string
	manifest *image.Manifest
	percent  int
}

// Worker is the body of the process that Builder.Run starts: it takes its order from stdin, and tells on file descriptor 3 how far it is.
// It must be process 1 of its own PID namespace, in a mount namespace of its own.
func Worker(ctx context.Context) error {
	if os.Getpid() != 1 {
		return errors.New("this command is an internal part of nearmetal's builder; see: nearmetal env build --help")
	}
	w := &worker{words: json.NewEncoder(wordsTo(3)), log: os.Stderr}
	err := w.start(ctx)
	var end word
	var failure *Failure
	switch {
	case errors.As(err, &failure):
		end = word{Failure: failure.Message}
	case err != nil:
		end = word{Error: err.Error()}
	default:
		end = word{Result: w.manifest}
	}
	return errors.Join(err, w.words.Encode(end))
}

// wordsTo is the pipe to the builder. What a build runs must not have it: a package's script could say there what was built, and how it ended.
func wordsTo(fd int) *os.File {
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), "words")
}

func (w *worker) start(ctx context.Context) error {
	if err := json.NewDecoder(os.Stdin).Decode(&w.order); err != nil {
		return fmt.Errorf("read the build's order: %w", err)
	}
	if err := joinGroup(w.Group); err != nil {
		return err
	}
	if err := w.settle(); err != nil {
		return err
	}
	for _, s := range w.steps() {
		w.say(s.name, s.percent)
		if err := s.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", s.name, diskFull(err))
		}
	}
	return nil
}

// step is one part of a build, and how far all of it is when it begins.
type step struct {
	name    string
	percent int
	do      func(context.Context) error
}

// steps lists what the recipe asks for, in order.
func (w *worker) steps() []step {
	if w.Recipe.Base.Disk != "" {
		return []step{{"inspect the disk image", 1, w.disk}, {"manifest", 99, w.finish}}
	}
	if w.Recipe.Changes != "" {
		return []step{{"changes", 1, w.changes}, {"pack", packing, w.pack}, {"search for keys", packed, w.searchChanges}, {"manifest", 99, w.finish}}
	}
	steps := []step{{"base", 1, w.base}}
	if w.Recipe.Base.Debian == "" && len(w.Recipe.Packages) > 0 || w.kernelPackage() != "" && w.Recipe.Base.Debian == "" {
		steps = append(steps, step{"packages", 20, w.packages})
	}
	if len(w.Recipe.Files) > 0 {
		steps = append(steps, step{"files", 62, w.files})
	}
	if len(w.Recipe.Commands) > 0 {
		steps = append(steps, step{"commands", 63, w.commands})
	}
	if w.Recipe.Kernel.Package != "" {
		steps = append(steps, step{"kernel", 70, w.metal})
	}
	if len(w.Recipe.Services) > 0 {
		steps = append(steps, step{"services", 74, w.services})
	}
	return append(steps, step{"clean", 75, w.normalize}, step{"pack", packing, w.pack}, step{"manifest", 99, w.finish})
}

// kernelPackage is the package to install for the kernel, or "".
func (w *worker) kernelPackage() string {
	if p := w.Recipe.Kernel.Package; p != recipe.KernelInstalled {
		return p
	}
	return ""
}

// settle makes this process's surroundings: mounts nobody else sees, its own /proc, a low priority.
func (w *worker) settle() error {
	w.root, w.tmp, w.out = filepath.Join(w.Scratch, "root"), filepath.Join(w.Scratch, "tmp"), filepath.Join(w.Scratch, "out")
	w.tree = w.root
	for _, dir := range []string{w.root, w.tmp, w.out} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	unix.Umask(0o022)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the build's mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount the build's /proc: %w", err)
	}
	if err := hideHybrid(); err != nil {
		return err
	}
	if err := w.makeOpen(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte("build")); err != nil {
		return err
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, 10); err != nil {
		return err
	}
	// When memory runs out, a build is what the node can spare most (proc(5), oom_score_adj).
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("900"), 0); err != nil {
		return err
	}
	w.manifest = &image.Manifest{}
	return nil
}

// makeOpen mounts w.open over a directory of the node that the build has no use for.
func (w *worker) makeOpen() error {
	for _, dir := range []string{"/mnt", "/media", "/srv", "/opt"} {
		used := []string{w.Scratch, w.Sources, w.Cache, w.Disk, w.Changes}
		for _, b := range w.Bases {
			used = append(used, b.Blobs)
		}
		if info, err := os.Stat(dir); err != nil || !info.IsDir() || slices.ContainsFunc(used, func(path string) bool {
			return strings.HasPrefix(path+"/", dir+"/")
		}) {
			continue
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=16m"); err != nil {
			return fmt.Errorf("mount a tmpfs on %s: %w", dir, err)
		}
		w.open = dir
		return nil
	}
	return errors.New("a build needs one of the directories /mnt, /media, /srv and /opt, without its scratch, sources or images in it; make one")
}

// hideHybrid takes away, for the build only, a control group tree of version 2 mounted beside those of version 1: crun refuses to run where
// there are both, even when it has nothing to do with either.
func hideHybrid() error {
	const unified = "/sys/fs/cgroup/unified"
	var st unix.Statfs_t
	if unix.Statfs(unified, &st) != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
		return nil
	}
	if err := unix.Unmount(unified, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", unified, err)
	}
	if err := unix.Mount("tmpfs", unified, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=1m"); err != nil {
		return fmt.Errorf("hide %s: %w", unified, err)
	}
	return nil
}

// say tells how far the build is; it never goes back.
func (w *worker) say(step string, percent int) {
	w.percent = max(w.percent, percent)
	percent = w.percent
	_ = w.words.Encode(word{Step: step, Percent: percent}) // a builder that does not listen any more kills this process
}

// finish puts the manifest together.
func (w *worker) finish(context.Context) error {
	m, r := w.manifest, w.Recipe
	m.Environment, m.Description, m.RecipeDigest = r.Name, r.Description, r.DigestOn(w.baseDigests())
	m.Stacks, m.Requirements, m.Services = r.Stacks, r.Requirements, r.Services
	if m.Architecture == "" {
		m.Architecture = machine()
	}
	return w.inherit(m)
}

// machine is this machine's architecture, as uname -m tells.
func machine() string {
	switch runtime.GOARCH {
	case "amd64":
		return "x86_64"
	case "arm64":
		return "aarch64"
	}
	return runtime.GOARCH
}

// diskFull says plainly what a full file system makes every program say in its own way.
func diskFull(err error) error {
	if errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("the scratch directory of this node is full: free space there (%w)", err)
	}
	return err
}
