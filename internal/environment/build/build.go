// Package build carries out recipes: it makes the image of one environment in a scratch directory, isolated from the node it runs on.
//
// The caller (the node agent) runs Builder.Run, which starts this program once more as a worker: process 1 of its own PID, mount, IPC and UTS
// namespaces, of low priority. Ending it ends all it started, and its mounts go with it. Packages come from mirrors that the node's own apt
// trusts; commands run in a container without a network, as root of a user namespace where the kernel can. What comes out holds nothing of the
// time, the node or the way it was made, so that the same recipe makes the same bytes.
//
// The package must never talk to the control plane. Start with Builder.Run, then worker.go, which lists the steps.
package build

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/internal/environment/recipe"
	"github.com/nearmetal/nearmetal/internal/filetree"
	"github.com/nearmetal/nearmetal/internal/image"
)

// DefaultMinFreeBytes is how much room a scratch and an output directory must have for a build to begin, unless said otherwise.
const DefaultMinFreeBytes = 2 << 30

// Config is how a builder runs on its node.
type Config struct {
	// Worker is the command that runs Worker: this program and the arguments that make it do so.
	Worker []string
	// MinFreeBytes is how much room scratch and output must have for a build to begin; 0 is DefaultMinFreeBytes. A build that leaves less than
	// half of it is ended: the disk is the node's too.
	MinFreeBytes int64
	// MemoryBytes is the most that a build may use, with all it starts, and Group names its control group on this machine; 0 or "": no limit.
	MemoryBytes int64
	Group       string
}

// Builder builds environments on this node.
type Builder struct{ cfg Config }

// New makes a builder.
func New(cfg Config) *Builder {
	if cfg.MinFreeBytes == 0 {
		cfg.MinFreeBytes = DefaultMinFreeBytes
	}
	return &Builder{cfg: cfg}
}

// Job is one build.
type Job struct {
	// ID names the build among those of the node: letters, digits and '-'.
	ID     string
	Recipe *recipe.Recipe
	// Scratch is where the build works, in a directory of its own that is gone when Run returns.
	Scratch string
	// Output gets a file for each blob, the manifest's included, named by the digits of its digest.
	Output string
	// Sources is the directory that files, trees and archives named in recipes are read below; empty: recipes can name none.
	Sources string
	// Cache keeps downloaded packages between builds; empty: they are fetched each time.
	Cache string
	// Bases are the environments that the recipe stands on (recipe.Needs), by name.
	Bases map[string]Base
	// Disk is the file of the disk image that the recipe imports; the build may change its mode.
	Disk string
	// Changes is the file of the archive of changed files that the recipe makes a layer of.
	Changes string
	// Progress is told what is done now and how far all of it is, 0 to 100; it must not block.
	Progress func(step string, percent int)
	// Log gets what the build prints.
	Log io.Writer
}

// Base is an environment that another is built over.
type Base struct {
	Manifest *image.Manifest
	// Blobs is the directory with its blobs, named by their digits.
	Blobs string
}

// Result is a built image.
type Result struct {
	Manifest *image.Manifest
	// Digest is the manifest's.
	Digest image.Digest
	// Blobs are the files that Output got, the manifest first. Those of a base are not among them.
	Blobs []image.Blob
}

// Failure is a build that can't succeed as it is; its text is for the recipe's author.
type Failure struct{ Message string }

func (f *Failure) Error() string { return f.Message }

// failf makes a Failure.
func failf(format string, args ...any) error { return &Failure{Message: fmt.Sprintf(format, args...)} }

var jobID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,80}$`) })

// Run carries out a build. It returns once nothing of it runs or is mounted any more, and its scratch is gone. When ctx ends, the build is
// killed and the error is ctx's. A *Failure is the recipe's fault, any other error the node's.
func (b *Builder) Run(ctx context.Context, job Job) (result Result, err error) {
	if !jobID().MatchString(job.ID) {
		return Result{}, fmt.Errorf("%q is not a valid build ID", job.ID)
	}
	if err := job.makeAbsolute(); err != nil {
		return Result{}, err
	}
	if err := room(b.cfg.MinFreeBytes, job.Scratch, job.Output); err != nil {
		return Result{}, err
	}
	order, err := b.order(job)
	if err != nil {
		return Result{}, err
	}
	order.Scratch, err = os.MkdirTemp(job.Scratch, "build-"+job.ID+"-")
	if err != nil {
		return Result{}, fmt.Errorf("make the scratch of build %s: %w", job.ID, err)
	}
	defer func() { err = errors.Join(err, removeScratch(ctx, order.Scratch)) }()
	if err := os.Chmod(order.Scratch, 0o755); err != nil { // apt's sandbox user reads below it
		return Result{}, err
	}
	outcome, err := b.bounded(ctx, order, job)
	if err != nil {
		return Result{}, err
	}
	return collect(job.Output, filepath.Join(order.Scratch, "out"), outcome)
}

// makeAbsolute makes paths good for processes that work elsewhere.
func (j *Job) makeAbsolute() error {
	var err error
	for _, path := range []*string{&j.Scratch, &j.Output, &j.Sources, &j.Cache, &j.Disk, &j.Changes} {
		if *path != "" && err == nil {
			*path, err = filepath.Abs(*path)
		}
	}
	bases := map[string]Base{}
	for name, base := range j.Bases {
		if err == nil {
			base.Blobs, err = filepath.Abs(base.Blobs)
		}
		bases[name] = base
	}
	j.Bases = bases
	return err
}

// Clean removes what builds left in their scratch directory that ended with the process that ran them. No build may run there.
func Clean(ctx context.Context, scratch string) error {
	left, err := filepath.Glob(filepath.Join(scratch, "build-*"))
	for _, dir := range left {
		err = errors.Join(err, filetree.Remove(ctx, dir))
	}
	return err
}

// scratchTime bounds the removal of one build's scratch, whose size and depth the recipe chose.
const scratchTime = 5 * time.Minute

// removeScratch removes the scratch of a build, also of a cancelled one.
func removeScratch(ctx context.Context, scratch string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), scratchTime)
	defer cancel()
	return filetree.Remove(ctx, scratch)
}

// order is what the worker is told; it must hold everything it needs.
type order struct {
	Recipe  *recipe.Recipe  `json:"recipe"`
	Scratch string          `json:"scratch"`
	Sources string          `json:"sources"`
	Cache   string          `json:"cache"`
	Bases   map[string]Base `json:"bases"`
	Disk    string          `json:"disk,omitempty"`
	Changes string          `json:"changes,omitempty"`
	// Lines are the recipe's lines of its commands, Group the control group that bounds the build.
	Lines []int  `json:"lines"`
	Group string `json:"group"`
}

func (b *Builder) order(job Job) (order, error) {
	o := order{Recipe: job.Recipe, Sources: job.Sources, Cache: job.Cache, Bases: job.Bases, Disk: job.Disk, Changes: job.Changes, Lines: job.Recipe.CommandLines}
	if job.Recipe.Base.Disk != "" && job.Disk == "" {
		return o, errors.New("the disk image that the recipe imports is missing")
	}
	if job.Recipe.Changes != "" && job.Changes == "" {
		return o, errors.New("the archive of the recipe's changes is missing")
	}
	if a := job.Recipe.Requirements.Architecture; a != "" && a != machine() {
		return o, failf("environment %q needs %s, but this builder node is %s; use a builder node of that architecture", job.Recipe.Name, a, machine())
	}
	for _, name := range job.Recipe.Needs() {
		if job.Bases[name].Manifest == nil {
			return o, failf("base environment %q is not built; build it first", name)
		}
	}
	return o, nil
}

// word is one line from the worker: progress, or how it ended.
type word struct {
	Step    string          `json:"step,omitempty"`
	Percent int             `json:"percent,omitempty"`
	Result  *image.Manifest `json:"result,omitempty"`
	// Failure is the recipe's fault, Error the node's.
	Failure string `json:"failure,omitempty"`
	Error   string `json:"error,omitempty"`
}

// bounded runs the worker within what a build may use of the node.
func (b *Builder) bounded(ctx context.Context, o order, job Job) (m *image.Manifest, err error) {
	group, err := makeGroup(b.cfg.Group, b.cfg.MemoryBytes)
	if err != nil {
		fmt.Fprintln(job.Log, "I: the build's memory is not limited:", err)
	}
	defer func() { err = errors.Join(err, group.remove()) }()
	o.Group = group.path()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { cancel(diskShort(ctx, b.cfg.MinFreeBytes/2, o.Scratch)) }()
	m, err = b.work(ctx, o, job)
	if ctx.Err() == nil {
		if killed := group.exceeded(); killed != nil {
			return nil, killed // whatever it says itself: a part of it is missing
		}
	}
	return m, err
}

// diskTick is how often it is looked how much room a build leaves.
const diskTick = time.Second

// diskShort waits until there is less room in a directory than is to be kept and says so; nil when ctx has ended before.
func diskShort(ctx context.Context, keep int64, dir string) error {
	ticker := time.NewTicker(diskTick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if free, err := freeBytes(dir); err == nil && free < keep {
			return fmt.Errorf("the build filled the disk and was ended: %s has %d MiB free, and %d MiB are kept for the node; free space there, or build it "+
				"on another node", filepath.Dir(dir), free>>20, keep>>20)
		}
	}
}

// work runs the worker to its end.
func (b *Builder) work(ctx context.Context, o order, job Job) (*image.Manifest, error) {
	// The kernel tells the worker when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG), so this one must stay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	input, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	words, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer words.Close()
	cmd := exec.CommandContext(ctx, b.cfg.Worker[0], b.cfg.Worker[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL, Setsid: true,
	}
	cmd.Stdin = strings.NewReader(string(input))
	cmd.Stdout, cmd.Stderr = job.Log, job.Log
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Env = workerEnvironment(o.Scratch)
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start the worker of build %s: %w", job.ID, err), theirs.Close())
	}
	if err := theirs.Close(); err != nil {
		return nil, err
	}
	last := listen(words, job.Progress)
	waited := cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case last.Result != nil && waited == nil:
		return last.Result, nil
	case last.Failure != "":
		return nil, &Failure{Message: last.Failure}
	case last.Error != "":
		return nil, errors.New(last.Error)
	}
	return nil, fmt.Errorf("the worker of build %s ended without a result: %w", job.ID, waited)
}

// workerEnvironment is all of the environment that a build sees: nothing of the agent's, except how it reaches the mirrors.
func workerEnvironment(scratch string) []string {
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8", "TZ=UTC",
		"TMPDIR=" + filepath.Join(scratch, "tmp"), "DEBIAN_FRONTEND=noninteractive",
		fmt.Sprintf("SOURCE_DATE_EPOCH=%d", epoch), // https://reproducible-builds.org/specs/source-date-epoch/
		"PYTHONHASHSEED=0", "INITRD=No",            // no initrd by the kernel's package: this builder makes one
	}
	for _, name := range []string{"http_proxy", "https_proxy", "no_proxy"} {
		if value := os.Getenv(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// listen passes progress on and returns the last word.
func listen(r io.Reader, progress func(string, int)) word {
	var last word
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return last
		}
		var w word
		if json.Unmarshal(line, &w) != nil {
			continue
		}
		if w.Step != "" && progress != nil {
			progress(w.Step, w.Percent)
		}
		last = w
	}
}

// collect moves the blobs from the scratch into the output.
func collect(output, out string, m *image.Manifest) (Result, error) {
	data, digest, err := m.Encode()
	if err != nil {
		return Result{}, err
	}
	if err := os.WriteFile(filepath.Join(out, digest.Hex()), data, 0o644); err != nil {
		return Result{}, fmt.Errorf("write the manifest: %w", err)
	}
	if err := os.MkdirAll(output, 0o755); err != nil {
		return Result{}, err
	}
	result := Result{Manifest: m, Digest: digest}
	seen := map[image.Digest]bool{}
	for _, blob := range append([]image.Blob{{Digest: digest, SizeBytes: int64(len(data))}}, m.Blobs()...) {
		from := filepath.Join(out, blob.Digest.Hex())
		if _, err := os.Stat(from); errors.Is(err, fs.ErrNotExist) || seen[blob.Digest] {
			continue // of a base
		}
		seen[blob.Digest] = true
		if err := move(from, filepath.Join(output, blob.Digest.Hex())); err != nil {
			return Result{}, fmt.Errorf("hand over what was built: %w", err)
		}
		result.Blobs = append(result.Blobs, blob)
	}
	return result, nil
}

// move renames, or copies when that leads to another file system.
func move(from, to string) error {
	err := os.Rename(from, to)
	if !errors.Is(err, syscall.EXDEV) {
		return err
	}
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}

// room refuses a build that has too little to begin with.
func room(least int64, dirs ...string) error {
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		free, err := freeBytes(dir)
		if err != nil {
			return fmt.Errorf("read the free space of %s: %w", dir, err)
		}
		if free < least {
			return fmt.Errorf("%s has %d MiB free; a build needs %d MiB: free space there, or choose another node", dir, free>>20, least>>20)
		}
	}
	return nil
}

func freeBytes(dir string) (int64, error) {
	var st syscall.Statfs_t
	err := syscall.Statfs(dir, &st)
	return int64(st.Bavail) * st.Bsize, err
}
