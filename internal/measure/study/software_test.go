package study

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/needs"
)

// software is a study of a program that reads 12 MB of a tree of 32 MB.
func software(t *testing.T) Software {
	t.Helper()
	tree := t.TempDir()
	for i := range 32 {
		content := make([]byte, 1e6)
		_, _ = rand.NewChaCha8([32]byte{byte(i)}).Read(content)
		if err := os.WriteFile(filepath.Join(tree, fmt.Sprintf("%02d", i)), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Software{
		Out: filepath.Join(t.TempDir(), "results"), Tree: tree, Command: []string{"sh", "-c", "cat {}/0? {}/10 {}/11 > /dev/null"}, Megabytes: []int{6, 24, 100}, Rounds: 2, Say: t.Logf,
	}
}

func TestAProgramIsFetchedAsItIsReadAndKeptWithinALimit(t *testing.T) {
	needs.Root(t, "mounts file systems")
	needs.Program(t, "mkfs.erofs")
	if _, err := os.Stat("/dev/fuse"); err != nil {
		needs.Hardware(t, "the kernel has no FUSE")
	}
	s := software(t)
	if _, err := s.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	record, err := openRecord[softwareRun](s.Out, softwareHead{"software-cache", s.Tree, s.Command, s.Megabytes, s.Delay, s.Rate, s.Rounds})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = record.close() }()
	if len(record.runs) != 6 {
		t.Fatalf("%d runs, want 2 rounds of 3 sizes", len(record.runs))
	}
	for _, r := range record.runs {
		// The kernel reads ahead of a program, and goes on when it has ended.
		first, again, dropped, once, emptied := r.Downloaded[0], r.Downloaded[1], r.Downloaded[2], r.Downloaded[3], r.Downloaded[4]
		if first < 12e6 || again+emptied > first/2 {
			t.Errorf("%s: downloaded %v; want 12 MB at first, and next to nothing while the page cache has it", r.Side, r.Downloaded)
		}
		if small := r.Side == side(6); small != r.TooSmall || small && min(dropped, once) < 6e6 || !small && dropped+once > first/2 {
			t.Errorf("%s, for 12 MB that are read: downloaded %v, too small: %v", r.Side, r.Downloaded, r.TooSmall)
		}
	}
	page, err := os.ReadFile(filepath.Join(s.Out, "report.html"))
	if err != nil || !strings.Contains(string(page), "yes (2 of 2 rounds)") {
		t.Errorf("the report does not say which cache is too small: %v", err)
	}
	s.Megabytes = []int{6, 24}
	if _, err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another study") {
		t.Errorf("runs of other sizes: %v", err)
	}
}

func TestAProgramThatFailsEndsTheStudy(t *testing.T) {
	needs.Root(t, "mounts file systems")
	needs.Program(t, "mkfs.erofs")
	s := software(t)
	s.Command = []string{"cat", "{}/missing"}
	if _, err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "No such file") {
		t.Errorf("a program that fails: %v", err)
	}
}

func TestBadSoftwareStudiesAreRefused(t *testing.T) {
	good := software(t)
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Software){
		"one size":       func(s *Software) { s.Megabytes = []int{5} },
		"a size twice":   func(s *Software) { s.Megabytes = []int{5, 5} },
		"an empty cache": func(s *Software) { s.Megabytes = []int{0, 5} },
		"no program":     func(s *Software) { s.Command = nil },
		"no tree":        func(s *Software) { s.Tree += "/missing" },
		"a file as tree": func(s *Software) { s.Tree += "/00" },
		"no round":       func(s *Software) { s.Rounds = 0 },
		"a long delay":   func(s *Software) { s.Delay = time.Hour },
	} {
		bad := good
		change(&bad)
		if err := bad.Validate(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
