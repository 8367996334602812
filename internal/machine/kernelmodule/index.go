// Package kernelmodule reads the indexes that depmod writes into lib/modules/VERSION: which file a module is, what it needs first, and
// which modules drive a device.
//
// The initrd is chosen by it and the boot agent loads by it. It only reads; loading is the caller's. Start with ReadIndex.
package kernelmodule

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Index is what is known of one kernel's modules. Names have underscores, never dashes, as the kernel itself shows them.
type Index struct {
	files   map[string]string   // name -> path below the folder
	needs   map[string][]string // name -> names, the ones to be loaded first last, as modules.dep has them
	aliases []alias             // in the file's order
	soft    map[string]softDependency
	builtin map[string]bool
}

type alias struct{ pattern, literal, name string }

// softDependency are modules or aliases to be loaded before and after one, if they exist (modprobe.d(5), softdep).
type softDependency struct{ pre, post []string }

// Name is the module's name for a file of it or a name with dashes.
func Name(file string) string {
	name := path.Base(file)
	if i := strings.Index(name, ".ko"); i >= 0 {
		name = name[:i]
	}
	return strings.ReplaceAll(name, "-", "_")
}

// ReadIndex reads modules.dep, modules.alias and, where they are there, modules.softdep and modules.builtin of a lib/modules/VERSION.
func ReadIndex(dir string) (*Index, error) {
	x := &Index{files: map[string]string{}, needs: map[string][]string{}, soft: map[string]softDependency{}, builtin: map[string]bool{}}
	for _, part := range []struct {
		file     string
		optional bool
		line     func(string) error
	}{
		{"modules.dep", false, x.dependencyLine},
		{"modules.alias", false, x.aliasLine},
		{"modules.softdep", true, x.softLine},
		{"modules.builtin", true, x.builtinLine},
	} {
		data, err := os.ReadFile(filepath.Join(dir, part.file))
		if part.optional && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		number := 0
		for line := range strings.Lines(string(data)) {
			number++
			line = strings.TrimSpace(line)
			if line == "" || line[0] == '#' {
				continue
			}
			if err := part.line(line); err != nil {
				return nil, fmt.Errorf("%s, line %d: %w; run depmod", filepath.Join(dir, part.file), number, err)
			}
		}
	}
	return x, nil
}

func (x *Index) dependencyLine(line string) error {
	file, needs, ok := strings.Cut(line, ":")
	if !ok || file == "" {
		return fmt.Errorf("%q is no FILE: FILES", line)
	}
	name := Name(file)
	x.files[name] = file
	for need := range strings.FieldsSeq(needs) {
		x.needs[name] = append(x.needs[name], Name(need))
	}
	return nil
}

func (x *Index) aliasLine(line string) error {
	words := strings.Fields(line)
	if len(words) != 3 || words[0] != "alias" {
		return fmt.Errorf("%q is no alias PATTERN MODULE", line)
	}
	pattern := words[1]
	literal := pattern
	if i := strings.IndexAny(pattern, "*?["); i >= 0 {
		literal = pattern[:i]
	}
	x.aliases = append(x.aliases, alias{pattern: pattern, literal: literal, name: Name(words[2])})
	return nil
}

func (x *Index) softLine(line string) error {
	words := strings.Fields(line)
	if len(words) < 2 || words[0] != "softdep" {
		return fmt.Errorf("%q is no softdep MODULE pre: MODULES post: MODULES", line)
	}
	name := Name(words[1])
	s := x.soft[name]
	before := true
	for _, word := range words[2:] {
		switch {
		case word == "pre:":
			before = true
		case word == "post:":
			before = false
		case before:
			s.pre = append(s.pre, word)
		default:
			s.post = append(s.post, word)
		}
	}
	x.soft[name] = s
	return nil
}

func (x *Index) builtinLine(line string) error {
	x.builtin[Name(line)] = true
	return nil
}

// Drivers returns the names of all modules that drive PCI devices, and of all that is built into the kernel, sorted.
func (x *Index) Drivers() []string {
	names := map[string]bool{}
	for _, a := range x.aliases {
		if strings.HasPrefix(a.pattern, "pci:") {
			names[a.name] = true
		}
	}
	for name := range x.builtin {
		names[name] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// Has tells whether a module is there as a file.
func (x *Index) Has(name string) bool { return x.files[Name(name)] != "" }

// Builtin tells whether a module is part of the kernel itself.
func (x *Index) Builtin(name string) bool { return x.builtin[Name(name)] }

// File is a module's file below the folder of the index.
func (x *Index) File(name string) string { return x.files[Name(name)] }

// Match returns the modules for a modalias, or the module of that name; in the index's order, without doubles.
func (x *Index) Match(modalias string) []string {
	var names []string
	if x.Has(modalias) {
		names = append(names, Name(modalias))
	}
	dashes := strings.ReplaceAll(modalias, "_", "-")
	for _, a := range x.aliases {
		if !slices.Contains(names, a.name) && (a.fits(modalias) || a.fits(dashes)) {
			names = append(names, a.name)
		}
	}
	return names
}

func (a alias) fits(modalias string) bool {
	if !strings.HasPrefix(modalias, a.literal) {
		return false
	}
	ok, err := path.Match(a.pattern, modalias)
	return ok && err == nil
}

// Order returns the names to load for a module, itself included, each after what it needs. What is built in or missing is left out.
func (x *Index) Order(name string) []string {
	var order []string
	visited := map[string]bool{}
	var visit func(name string)
	visit = func(name string) {
		if visited[name] || !x.Has(name) {
			return
		}
		visited[name] = true
		for _, soft := range x.soft[name].pre {
			for _, m := range x.Match(soft) {
				visit(m)
			}
		}
		for _, need := range slices.Backward(x.needs[name]) {
			visit(need)
		}
		order = append(order, name)
		for _, soft := range x.soft[name].post {
			for _, m := range x.Match(soft) {
				visit(m)
			}
		}
	}
	visit(Name(name))
	return order
}

// Closure is all modules needed for these, sorted.
func (x *Index) Closure(names []string) []string {
	all := map[string]bool{}
	for _, name := range names {
		for _, m := range x.Order(name) {
			all[m] = true
		}
	}
	list := make([]string, 0, len(all))
	for name := range all {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// Subset is the index of these modules only.
func (x *Index) Subset(names []string) *Index {
	s := &Index{files: map[string]string{}, needs: map[string][]string{}, soft: map[string]softDependency{}, builtin: map[string]bool{}}
	for _, name := range names {
		if file := x.files[name]; file != "" {
			s.files[name], s.needs[name] = file, x.needs[name]
			if soft, ok := x.soft[name]; ok {
				s.soft[name] = soft
			}
		}
	}
	for _, a := range x.aliases {
		if s.files[a.name] != "" {
			s.aliases = append(s.aliases, a)
		}
	}
	return s
}

// Files are the files of all modules of the index, below its folder, sorted.
func (x *Index) Files() []string {
	files := make([]string, 0, len(x.files))
	for _, file := range x.files {
		files = append(files, file)
	}
	slices.Sort(files)
	return files
}

// Dependencies, Aliases and SoftDependencies are the index as modules.dep, modules.alias and modules.softdep have it.
func (x *Index) Dependencies() []byte {
	var b bytes.Buffer
	for _, file := range x.Files() {
		b.WriteString(file + ":")
		for _, need := range x.needs[Name(file)] {
			if x.files[need] != "" {
				b.WriteString(" " + x.files[need])
			}
		}
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// Aliases: see Dependencies.
func (x *Index) Aliases() []byte {
	var b bytes.Buffer
	for _, a := range x.aliases {
		b.WriteString("alias " + a.pattern + " " + a.name + "\n")
	}
	return b.Bytes()
}

// SoftDependencies: see Dependencies.
func (x *Index) SoftDependencies() []byte {
	var b bytes.Buffer
	for _, file := range x.Files() {
		name := Name(file)
		if s := x.soft[name]; len(s.pre)+len(s.post) > 0 {
			b.WriteString("softdep " + name + " pre: " + strings.Join(s.pre, " ") + " post: " + strings.Join(s.post, " ") + "\n")
		}
	}
	return b.Bytes()
}
