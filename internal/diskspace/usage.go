package diskspace

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// remedies say how to make room, by the entry of the state directory that takes it.
var remedies = map[string]string{
	"images":  "delete built environments with 'nearmetal env delete'",
	"joblogs": "remove files of jobs that have ended",
	"nodes":   "delete clusters",
	"home":    "delete clusters",
}

// maxCounted bounds how many files are looked at: what tenants made is among them.
const maxCounted = 100_000

// entry is one entry of the state directory and the room it takes.
type entry struct {
	name  string
	bytes int64
}

// describe says what takes the most room in a state directory, and how to remove it.
func describe(dir string) string {
	names, err := os.ReadDir(dir)
	if err != nil {
		return ""
	}
	left := maxCounted
	var entries []entry
	for _, n := range names {
		if n.Name() != reserveName {
			entries = append(entries, entry{n.Name(), count(filepath.Join(dir, n.Name()), &left)})
		}
	}
	return advice(dir, entries)
}

// advice names the largest entries, with what removes them.
func advice(dir string, entries []entry) string {
	const named, tiny = 3, 1 << 20
	slices.SortStableFunc(entries, func(a, b entry) int { return int(min(1, max(-1, b.bytes-a.bytes))) })
	var parts []string
	for _, e := range entries {
		remedy := remedies[e.name]
		if remedy == "" || e.bytes < tiny || len(parts) == named {
			continue
		}
		parts = append(parts, fmt.Sprintf("%s take %s (%s)", filepath.Join(dir, e.name), size(e.bytes), remedy))
	}
	if len(parts) == 0 {
		return "other files on that file system take the room: remove some, or enlarge it"
	}
	return "there " + strings.Join(parts, ", ") + "; or make room on that file system elsewhere"
}

// count adds up the room that files take on the file system of a path. It stays off other file systems, such as members' mounted roots.
func count(root string, left *int) int64 {
	var top unix.Stat_t
	if unix.Lstat(root, &top) != nil {
		return 0
	}
	var bytes int64
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // it went away, or is nobody's to read: the rest still counts
		}
		if *left--; *left < 0 {
			return fs.SkipAll
		}
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil {
			return nil
		}
		if st.Dev != top.Dev {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		bytes += st.Blocks * 512
		return nil
	})
	return bytes
}

// size writes an amount of room for people.
func size(bytes int64) string {
	if bytes < 1<<30 {
		return fmt.Sprintf("%d MiB", max(0, bytes)>>20)
	}
	return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
}
