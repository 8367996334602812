package build

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
	"slices"
	"strconv"
	"strings"
	"sync"
)

// unsafeIO makes dpkg(1) not wait for the disk after each file: a build that a power cut ends is built again.
const unsafeIO = "force-unsafe-io"

// debian makes the root of a Debian release with all its packages by mmdebstrap(1).
func (w *worker) debian(ctx context.Context) error {
	r := w.Recipe
	packages := slices.Clone(r.Packages)
	if kernel := w.kernelPackage(); kernel != "" {
		// Debian's kernels depend on a maker of initrds; this is the smallest, and never run.
		packages = append(packages, kernel, "tiny-initramfs")
	}
	args := []string{
		"--verbose", "--variant=minbase", "--mode=root", "--format=directory",
		"--aptopt=APT::Install-Recommends false", "--aptopt=Acquire::Languages none", "--aptopt=Acquire::Retries 3",
		"--dpkgopt=" + unsafeIO,
	}
	if len(packages) > 0 {
		args = append(args, "--include="+strings.Join(packages, ","))
	}
	// /usr is merged from the start; else a program that merges it comes in, and Perl with it.
	if hooks := "/usr/share/mmdebstrap/hooks/maybe-merged-usr"; exists(hooks) {
		args = append(args, "--hook-dir="+hooks)
	}
	for _, pattern := range r.Exclude {
		args = append(args, "--dpkgopt=path-exclude="+pattern)
	}
	args = append(args, w.cacheHooks()...)
	sources := w.debianSources(ctx)
	args = append(args, r.Base.Debian, w.root)
	args = append(args, sources...)
	for _, line := range sources {
		fmt.Fprintln(w.log, "I: from", line)
	}
	cmd := exec.CommandContext(ctx, "mmdebstrap", args...)
	cmd.Dir = w.tmp
	watch := &aptWatch{log: w.log, say: func(done float64) { w.say("base", 1+int(done*60)) }}
	cmd.Stdout, cmd.Stderr = watch, watch
	if err := cmd.Run(); err != nil {
		return watch.explain(err, "Debian "+r.Base.Debian)
	}
	return errors.Join(w.writeSources(), forgetUnsafeIO(filepath.Join(w.root, "etc/dpkg/dpkg.cfg.d/99mmdebstrap")))
}

// forgetUnsafeIO takes out of the root's own dpkg configuration what was for the build only.
func forgetUnsafeIO(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("the root's dpkg configuration: %w", err)
	}
	return os.WriteFile(file, []byte(strings.ReplaceAll(string(text), unsafeIO+"\n", "")), 0o644)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// cacheHooks make mmdebstrap keep downloaded packages in the cache and take them from there (mmdebstrap(1), EXAMPLES).
func (w *worker) cacheHooks() []string {
	if w.Cache == "" {
		return nil
	}
	if err := os.MkdirAll(w.Cache, 0o755); err != nil {
		return nil // a cache saves time, nothing else
	}
	// Both sides of the copy are hard links where they can be: a package is 0.2 GiB at most, but there are hundreds.
	take := `mkdir -p "$1/var/cache/apt/archives"; cp -al "` + w.Cache + `/." "$1/var/cache/apt/archives/" 2>/dev/null || cp -a "` + w.Cache +
		`/." "$1/var/cache/apt/archives/" || true`
	keep := `for f in "$1"/var/cache/apt/archives/*.deb; do b="` + w.Cache + `/${f##*/}"; [ -e "$f" ] && [ ! -e "$b" ] && ` +
		`{ ln "$f" "$b" 2>/dev/null || { cp "$f" "$b.new" && mv "$b.new" "$b"; }; }; done; true`
	return []string{"--skip=download/empty", "--skip=essential/unlink", "--setup-hook=" + take, "--customize-hook=" + keep}
}

// debianSources are sources.list lines of the release: the recipe's mirror, or what the node's own apt has, so that a local mirror is used
// where there is one. None: mmdebstrap's defaults.
func (w *worker) debianSources(ctx context.Context) []string {
	base := w.Recipe.Base
	components := strings.Join(base.Components, " ")
	if base.Mirror != "" {
		// A snapshot's Release file has run out, on purpose.
		return []string{fmt.Sprintf("deb [check-valid-until=no] %s %s %s", base.Mirror, base.Debian, components)}
	}
	return w.nodeSources(ctx, base.Debian, base.Components)
}

// nodeSources are what the node's own apt has of a release.
func (w *worker) nodeSources(ctx context.Context, release string, components []string) []string {
	text, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(CODENAME)|$(SITE) $(RELEASE)", "Created-By: Packages").Output()
	if err != nil {
		return nil
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		codename, source, _ := strings.Cut(strings.TrimSpace(line), "|")
		line := "deb " + source + " " + strings.Join(components, " ")
		if suite := strings.TrimPrefix(codename, release); (suite == "" || suite == "-updates" || suite == "-security") && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// writeSources leaves the release's public mirrors in the root: which mirror the builder used is nobody's business, and would make the same
// image another one on another node.
func (w *worker) writeSources() error {
	base := w.Recipe.Base
	mirror, components := base.Mirror, strings.Join(base.Components, " ")
	lines := ""
	if mirror != "" {
		lines = fmt.Sprintf("deb [check-valid-until=no] %s %s %s\n", mirror, base.Debian, components)
	} else {
		lines = fmt.Sprintf("deb http://deb.debian.org/debian %s %s\n", base.Debian, components)
		if base.Debian != "sid" {
			lines += fmt.Sprintf("deb http://deb.debian.org/debian %s-updates %s\n", base.Debian, components)
			lines += fmt.Sprintf("deb http://deb.debian.org/debian-security %s-security %s\n", base.Debian, components)
		}
	}
	root, err := os.OpenRoot(w.root)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.RemoveAll("etc/apt/sources.list.d"); err != nil {
		return err
	}
	if err := root.Mkdir("etc/apt/sources.list.d", 0o755); err != nil {
		return err
	}
	return root.WriteFile("etc/apt/sources.list", []byte(lines), 0o644)
}

var aptCount = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\d+ upgraded, (\d+) newly installed`) })

// aptError is a line by which apt or dpkg tells why it failed.
type aptError struct {
	line *regexp.Regexp
	say  string
	// node: it is the builder node's matter, the recipe may be good.
	node bool
}

// aptErrors are in order of importance: what comes first explains the others.
var aptErrors = sync.OnceValue(func() []aptError {
	return []aptError{
		{regexp.MustCompile(`No space left on device()`), "the scratch directory of this node is full: free space there", true},
		{regexp.MustCompile(`^E: Unable to locate package (\S+)`), "package %[1]q is not in %[2]s; find its name with: apt-cache search", false},
		{regexp.MustCompile(`^E: Package '(\S+)' has no installation candidate`), "package %[1]q is not in %[2]s: other packages mention it, but none provides it", false},
		{regexp.MustCompile(`^E: Version '(.+?)' .*was not found`), "version %[1]s is not in %[2]s; omit the version, or use a mirror that has it", false},
		{regexp.MustCompile(`^E: Couldn't find any package by (?:regex|glob) '(\S+)'`), "package %[1]q is not in %[2]s; find its name with: apt-cache search", false},
		{regexp.MustCompile(`^E: Failed to fetch (\S+)`), "can't fetch %[1]s for %[2]s: check the network and the mirror of the builder node", true},
		{regexp.MustCompile(`^[EW]: The repository '(.+?)' .*(?:not signed|does not have a Release file)`), "the builder node does not trust the repository %[1]s (%[2]s): check its keys and its Release file", true},
		{regexp.MustCompile(`^dpkg: error processing package (\S+)`), "package %[1]q of %[2]s can't be set up; the build's log says why", false},
	}
})

// aptWatch passes on what apt and dpkg print, counts packages and keeps the lines that tell why it failed.
type aptWatch struct {
	log           io.Writer
	say           func(done float64)
	line          bytes.Buffer
	total, passed int
	last          []string
	found         map[int][]string
}

func (a *aptWatch) Write(p []byte) (int, error) {
	for _, c := range p {
		if c != '\n' && c != '\r' {
			a.line.WriteByte(c)
			continue
		}
		a.read(a.line.String())
		a.line.Reset()
	}
	return a.log.Write(p)
}

func (a *aptWatch) read(line string) {
	if line == "" {
		return
	}
	a.last = append(a.last, line)
	a.last = a.last[max(0, len(a.last)-5):]
	if m := aptCount().FindStringSubmatch(line); m != nil {
		n, _ := strconv.Atoi(m[1]) // digits
		a.total = max(a.total, 2*n)
	}
	if strings.HasPrefix(line, "Unpacking ") || strings.HasPrefix(line, "Setting up ") {
		a.passed++
		if a.total > 0 && a.passed%8 == 0 {
			a.say(min(1, float64(a.passed)/float64(a.total)))
		}
	}
	for i, e := range aptErrors() {
		if m := e.line.FindStringSubmatch(line); m != nil {
			if a.found == nil {
				a.found = map[int][]string{}
			}
			if !slices.Contains(a.found[i], m[1]) {
				a.found[i] = append(a.found[i], m[1])
			}
		}
	}
}

// explain makes of a failed run what its last words mean.
func (a *aptWatch) explain(err error, where string) error {
	a.read(a.line.String()) // a last line without an end
	for i, e := range aptErrors() {
		var all []string
		for _, what := range a.found[i] {
			text := e.say
			if strings.Contains(text, "%[") {
				text = fmt.Sprintf(strings.ReplaceAll(text, "%[2]s", strings.ReplaceAll(where, "%", "%%")), what)
			}
			all = append(all, text)
		}
		switch {
		case len(all) > 0 && e.node:
			return errors.New(strings.Join(all, "\n"))
		case len(all) > 0:
			return failf("%s", strings.Join(all, "\n"))
		}
	}
	if errors.Is(err, exec.ErrNotFound) {
		return err
	}
	return fmt.Errorf("%w; its last output:\n%s", err, strings.Join(a.last, "\n"))
}
