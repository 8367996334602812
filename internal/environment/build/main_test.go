package build_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/environment/build"
	"github.com/nearmetal/nearmetal/internal/environment/recipe"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// TestMain is the worker too: builders start this program again for it.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "build-environment" {
		if err := build.Worker(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) == 6 && os.Args[1] == "run-build" {
		if err := runBuild(os.Args[2], os.Args[3], os.Args[4], os.Args[5]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runBuild is a node agent that can be killed.
func runBuild(scratch, output, sources, text string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	r, err := recipe.Parse([]byte(text))
	if err != nil {
		return err
	}
	_, err = build.New(build.Config{Worker: []string{self, "build-environment"}, MinFreeBytes: 1}).Run(context.Background(), build.Job{
		ID: "killed", Recipe: r, Scratch: scratch, Output: output, Sources: sources, Log: os.Stdout,
	})
	return err
}

// worker is the command that is a build's worker.
func worker(t *testing.T) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{self, "build-environment"}
}

func builder(t *testing.T) *build.Builder {
	t.Helper()
	b := build.New(build.Config{
		Worker:       worker(t),
		MinFreeBytes: 1 << 20,
	})
	if check := b.Check(t.Context()); !check.OK {
		needs.Missing(t, "environments can't be built here: %s", strings.Join(check.Problems, "; "))
	}
	return b
}

// site is a builder with its directories, and the images built so far.
type site struct {
	*build.Builder
	t       *testing.T
	sources string
	scratch string
	output  string
	bases   map[string]build.Base
}

func newSite(t *testing.T) *site {
	t.Helper()
	dir := t.TempDir()
	s := &site{
		Builder: builder(t), t: t, bases: map[string]build.Base{},
		sources: filepath.Join(dir, "sources"), scratch: filepath.Join(dir, "scratch"), output: filepath.Join(dir, "output"),
	}
	for _, d := range []string{s.sources, s.scratch, s.output} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// outcome is what a build said.
type outcome struct {
	build.Result
	err   error
	log   string
	steps []string
}

func (s *site) build(ctx context.Context, text string, log io.Writer) outcome {
	s.t.Helper()
	r, err := recipe.Parse([]byte(text))
	if err != nil {
		s.t.Fatal(err)
	}
	var o outcome
	percent := 0
	var printed bytes.Buffer
	if log == nil {
		log = io.Discard
	}
	o.Result, o.err = s.Run(ctx, build.Job{
		ID: "test", Recipe: r, Scratch: s.scratch, Output: s.output, Sources: s.sources, Bases: s.bases,
		Progress: func(step string, now int) {
			if now < percent || now > 100 {
				s.t.Errorf("progress went from %d %% to %d %% (%s)", percent, now, step)
			}
			percent = now
			if !strings.Contains(step, ": ") { // how far within the step: told by the clock
				o.steps = append(o.steps, step)
			}
		},
		Log: io.MultiWriter(&printed, log),
	})
	o.log = printed.String()
	if left, err := os.ReadDir(s.scratch); err != nil || len(left) > 0 {
		s.t.Errorf("the build left in its scratch: %v, %v", left, err)
	}
	return o
}

// mustBuild builds and remembers the image under the recipe's name.
func (s *site) mustBuild(text string) outcome {
	s.t.Helper()
	o := s.build(s.t.Context(), text, nil)
	if o.err != nil {
		s.t.Fatalf("build: %v\n%s", o.err, o.log)
	}
	s.bases[o.Manifest.Environment] = build.Base{Manifest: o.Manifest, Blobs: s.output}
	return o
}

// mount mounts an image's roots for the test and returns the directory.
func (s *site) mount(m *image.Manifest) string {
	s.t.Helper()
	var dirs []string
	for _, r := range m.Roots() {
		dir := s.t.TempDir()
		text, err := exec.Command("mount", "-t", string(r.Format), "-o", "ro,loop", filepath.Join(s.output, r.Digest.Hex()), dir).CombinedOutput()
		if err != nil {
			needs.Missing(s.t, "the kernel does not mount %s: %s", r.Format, text)
		}
		s.unmount(dir)
		dirs = append([]string{dir}, dirs...)
	}
	if len(dirs) == 1 {
		return dirs[0]
	}
	dir := s.t.TempDir()
	if err := unix.Mount("overlay", dir, "overlay", unix.MS_RDONLY, "lowerdir="+strings.Join(dirs, ":")); err != nil {
		s.t.Fatal(err)
	}
	s.unmount(dir)
	return dir
}

func (s *site) unmount(dir string) {
	s.t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			s.t.Errorf("unmount %s: %v", dir, err)
		}
	})
}

var libraryPath = regexp.MustCompile(`(?m)(/\S+) \(0x`)

// tinyRoot makes a root with these programs of the host and their libraries below the source directory.
func (s *site) tinyRoot(name string, programs ...string) {
	s.t.Helper()
	dir := filepath.Join(s.sources, name)
	for _, d := range []string{"bin", "etc", "lib/modules", "usr/bin", "var/log", "root", "proc", "dev"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			s.t.Fatal(err)
		}
	}
	wanted := map[string]string{}
	for _, program := range append([]string{"sh"}, programs...) {
		path := needs.Program(s.t, program)
		wanted["/bin/"+program] = path
		libraries, err := exec.Command("ldd", path).Output()
		if err != nil {
			s.t.Fatal(err)
		}
		for _, m := range libraryPath.FindAllStringSubmatch(string(libraries), -1) {
			wanted[m[1]] = m[1]
		}
	}
	for to, from := range wanted {
		data, err := os.ReadFile(from)
		if err != nil {
			s.t.Fatal(err)
		}
		s.write(filepath.Join(name, to), string(data), 0o755)
	}
}

// write puts a file below the source directory.
func (s *site) write(name, content string, mode os.FileMode) {
	s.t.Helper()
	path := filepath.Join(s.sources, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), mode)); err != nil {
		s.t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// signalWriter closes its channel once a text was written to it.
type signalWriter struct {
	mu   sync.Mutex
	seen bytes.Buffer
	text string
	came chan struct{}
}

func (w *signalWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := bytes.Contains(w.seen.Bytes(), []byte(w.text))
	w.seen.Write(p)
	if !before && bytes.Contains(w.seen.Bytes(), []byte(w.text)) {
		close(w.came)
	}
	return len(p), nil
}
