package container

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/gpu"
	"github.com/nearmetal/nearmetal/internal/loadercache"
)

func TestAMembersLoaderCacheIsThatOfItsEnvironmentWithTheDriversLibrariesFirst(t *testing.T) {
	dir := t.TempDir()
	known := &loadercache.Cache{}
	known.Add(map[string]string{"libc.so.6": "/lib/libc.so.6", "libcuda.so.1": "/usr/lib/libcuda.so.1"})
	sound, broken := filepath.Join(dir, "sound"), filepath.Join(dir, "broken")
	if err := errors.Join(os.WriteFile(sound, known.Bytes(), 0o644), os.WriteFile(broken, []byte("#!/bin/sh"), 0o644)); err != nil {
		t.Fatal(err)
	}
	bind := func(view string) []environment.Bind {
		return []environment.Bind{{Target: "/etc/hosts", View: "/no/such"}, {Target: "/etc/ld.so.cache", Source: "/in/another/namespace", View: view}}
	}
	edits := &gpu.Edits{Libraries: map[string]string{"libcuda.so.1": "/run/nearmetal-gpu/lib/libcuda.so.1"}}
	for name, c := range map[string]struct {
		edits *gpu.Edits
		plan  etcPlan
		want  string
	}{
		"a member without GPUs":           {nil, etcPlan{binds: bind(sound)}, ""},
		"a vendor without libraries":      {&gpu.Edits{}, etcPlan{binds: bind(sound)}, ""},
		"an environment with a cache":     {edits, etcPlan{binds: bind(sound)}, "/run/nearmetal-gpu/lib/libcuda.so.1 /usr/lib/libcuda.so.1 /lib/libc.so.6"},
		"a cache that is copied":          {edits, etcPlan{copies: bind(sound)}, "/run/nearmetal-gpu/lib/libcuda.so.1 /usr/lib/libcuda.so.1 /lib/libc.so.6"},
		"an environment without a cache":  {edits, etcPlan{}, "/run/nearmetal-gpu/lib/libcuda.so.1"},
		"an environment with other bytes": {edits, etcPlan{binds: bind(broken)}, "/run/nearmetal-gpu/lib/libcuda.so.1"},
	} {
		staged := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
		has, err := stageLoaderCache(staged, c.edits, c.plan)
		if err != nil || has != (c.want != "") {
			t.Errorf("%s: %v, %v", name, has, err)
			continue
		}
		if !has {
			continue
		}
		text, err := os.ReadFile(filepath.Join(staged, fileLoaderCache))
		if err != nil {
			t.Fatal(err)
		}
		cache, err := loadercache.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		var paths []string
		for _, e := range cache.Entries {
			paths = append(paths, e.Path)
		}
		if got := strings.Join(paths, " "); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
