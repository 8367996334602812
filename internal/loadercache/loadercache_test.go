package loadercache_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/loadercache"
	"github.com/nearmetal/nearmetal/internal/needs"
)

func readCache(t *testing.T) ([]byte, *loadercache.Cache) {
	t.Helper()
	text, err := os.ReadFile("/etc/ld.so.cache")
	if err != nil {
		needs.Missing(t, "this machine has no loader cache: %v", err)
	}
	cache, err := loadercache.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return text, cache
}

func TestALoaderCacheIsWrittenAsItWasRead(t *testing.T) {
	_, cache := readCache(t)
	again, err := loadercache.Parse(cache.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if len(again.Entries) != len(cache.Entries) || len(again.Subfolders) != len(cache.Subfolders) {
		t.Fatalf("got %d entries and %d folders, want %d and %d", len(again.Entries), len(again.Subfolders), len(cache.Entries), len(cache.Subfolders))
	}
	for i := range cache.Entries {
		if again.Entries[i] != cache.Entries[i] {
			t.Errorf("entry %d: got %+v, want %+v", i, again.Entries[i], cache.Entries[i])
		}
	}
}

func TestTheLoaderOfThisMachineFindsAnAddedLibrary(t *testing.T) {
	_, cache := readCache(t)
	before := len(cache.Entries)
	cache.Add(map[string]string{"libcuda.so.1": "/run/x/libcuda.so.1", "libc.so.6": "/run/x/libc.so.6", "libaaa.so": "/run/x/libaaa.so", "libzzz.so.99": "/run/x/libzzz.so.99"})
	file := filepath.Join(t.TempDir(), "ld.so.cache")
	if err := os.WriteFile(file, cache.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(needs.Program(t, "/sbin/ldconfig"), "-p", "-C", file).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	for _, want := range []string{"libcuda.so.1 (libc6", "libaaa.so (libc6", "libzzz.so.99 (libc6"} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("ldconfig does not list %s", want)
		}
	}
	first := ""
	for _, line := range lines {
		if strings.HasPrefix(strings.TrimSpace(line), "libc.so.6 ") && first == "" {
			first = line
		}
	}
	if !strings.HasSuffix(first, "/run/x/libc.so.6") {
		t.Errorf("the first libc.so.6 is %q, want the added one", first)
	}
	if len(cache.Entries) != before+4 {
		t.Errorf("got %d entries, want %d", len(cache.Entries), before+4)
	}
}

func FuzzALoaderCacheMayBeAnyBytes(f *testing.F) {
	cache := &loadercache.Cache{Subfolders: []string{"x86-64-v3"}}
	cache.Add(map[string]string{"libcuda.so.1": "/run/x/libcuda.so.1"})
	f.Add(cache.Bytes())
	f.Add([]byte("ld.so-1.7.0\x00\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if c, err := loadercache.Parse(text); err == nil {
			if _, err := loadercache.Parse(c.Bytes()); err != nil {
				t.Errorf("what was read can't be read again: %v", err)
			}
		}
	})
}
