package recipe

import (
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// Limits of a recipe.
const (
	maxNameLength        = manifest.MaxLabel
	maxDescriptionLength = 200
	maxPackages          = 2000
	maxFiles             = 1000
	maxCommands          = 200
	maxLayers            = 16
)

// MaxArgumentsLength is how long the kernel's arguments may be, in bytes: its whole command line holds 2048 on x86-64 (COMMAND_LINE_SIZE).
const MaxArgumentsLength = 1024

// DefaultFormat of a root; docs/decisions/020-roots-are-erofs.md has the numbers behind it.
const DefaultFormat = "erofs"

// compressions by format, the default first.
var compressions = map[string][]string{
	"erofs":    {"lz4hc", "lz4", "none"},
	"squashfs": {"zstd", "lz4", "gzip", "xz", "none"},
	NoRoot:     {},
}

// releases of Debian that have had one name for ever; "stable" and its like move.
var releases = []string{"bullseye", "bookworm", "trixie", "forky", "sid"}

var (
	// debianPackage is Debian Policy 5.6.1, with a version after '=' as apt-get has it (5.6.12).
	debianPackage = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+(:[a-z0-9-]+)?(=[A-Za-z0-9.+:~-]+)?$`)
	// otherPackage is what any package manager takes and none reads as an option.
	otherPackage = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9+._:~=-]*$`)
	codeName     = regexp.MustCompile(`^[a-z]+$`)
	// components of Debian (Policy 2.2).
	components    = []string{"main", "contrib", "non-free", "non-free-firmware"}
	architectures = []string{"x86_64", "aarch64"}
	devices       = []string{"hca", "gpu", "nvme", "sriov"}
	cpuFlag       = regexp.MustCompile(`^[a-z0-9_]+$`)
)

// checker gathers the problems of a recipe.
type checker struct {
	source   *manifest.Source
	recipe   *Recipe
	problems []api.FieldProblem
}

// add a problem at the field, or where it ought to be.
func (c *checker) add(at, value, format string, args ...any) {
	place := at
	for place != "" && c.source.Line(place) == 0 {
		place = place[:max(strings.LastIndexAny(place, ".["), 0)]
	}
	c.problems = append(c.problems, api.FieldProblem{
		Location: at, Line: c.source.Line(place), Column: c.source.Column(place), Value: value, Message: fmt.Sprintf(format, args...),
	})
}

// invalid is the error of all problems, in the order of their lines.
func (c *checker) invalid() error {
	slices.SortStableFunc(c.problems, func(a, b api.FieldProblem) int { return a.Line - b.Line })
	return &manifest.Invalid{Problems: c.problems}
}

func (c *checker) check() {
	r := c.recipe
	if r.Name == "" && !c.source.Has("name") {
		c.add("name", "", "is missing; give the environment a name, for example: name: my-mpi")
	} else if problem := manifest.LabelProblem(r.Name, maxNameLength); problem != "" {
		c.add("name", r.Name, "%q %s", r.Name, problem)
	} else if r.Name == "local" {
		c.add("name", r.Name, `"local" is the built-in environment of every node; choose another name`)
	}
	if len(r.Description) > maxDescriptionLength || strings.ContainsAny(r.Description, "\n\r\x00") {
		c.add("description", "", "must be one line of at most %d characters", maxDescriptionLength)
	}
	c.base()
	if r.Base.Disk != "" {
		c.disk()
		return
	}
	if c.source.Has("changes") || c.source.Has("keep_keys") {
		c.changes()
	}
	if c.source.Has("disk") {
		c.add("disk", "", "applies to base.disk only; omit it")
	}
	c.packages()
	c.files()
	c.commands()
	c.kernel()
	c.stacks()
	c.services()
	c.requirements()
	c.root()
	c.layers()
}

func (c *checker) base() {
	b := c.recipe.Base
	var given []string
	for _, one := range []struct{ name, value string }{
		{"debian", b.Debian}, {"oci", b.OCI}, {"directory", b.Directory}, {"environment", b.Environment}, {"disk", b.Disk},
	} {
		if one.value != "" || c.source.Has("base."+one.name) {
			given = append(given, one.name)
		}
	}
	switch {
	case len(given) == 0:
		c.add("base", "", "is missing; give one, for example: base: {debian: bookworm}")
		return
	case len(given) > 1:
		c.add("base."+given[1], "", "conflicts with base.%s; a recipe has one base", given[0])
		return
	}
	switch given[0] {
	case "debian":
		c.release(b.Debian)
	case "oci":
		file, tag, _ := strings.Cut(b.OCI, "@")
		c.below("base.oci", file)
		if strings.Contains(b.OCI, "@") && (tag == "" || strings.ContainsAny(tag, " \t\n\x00")) {
			c.add("base.oci", b.OCI, "%q has no tag after '@'; write PATH or PATH@TAG", b.OCI)
		}
	case "directory":
		c.below("base.directory", b.Directory)
	case "disk":
		if err := image.Digest(b.Disk).Check(); err != nil {
			c.add("base.disk", b.Disk, "%v; 'nearmetal env import' uploads a disk image and writes the recipe", err)
		}
	case "environment":
		if problem := manifest.LabelProblem(b.Environment, maxNameLength); problem != "" {
			c.add("base.environment", b.Environment, "%q %s", b.Environment, problem)
		} else if b.Environment == c.recipe.Name {
			c.add("base.environment", b.Environment, "is the recipe's own name; an environment can't be its own base")
		} else if b.Environment == "local" {
			c.add("base.environment", b.Environment, `"local" has no image, so it can't be a base; use a built environment`)
		}
	}
	for i, name := range b.Components {
		if at := fmt.Sprintf("base.components[%d]", i); b.Debian == "" {
			c.add(at, name, "applies to base.debian only, but the base is base.%s; omit it", given[0])
		} else {
			c.oneOf(at, name, "component of Debian", components)
		}
	}
	if b.Mirror != "" || c.source.Has("base.mirror") {
		c.mirror(b, given[0])
	}
}

func (c *checker) mirror(b Base, base string) {
	u, err := url.Parse(b.Mirror)
	switch {
	case base != "debian":
		c.add("base.mirror", b.Mirror, "applies to base.debian only, but the base is base.%s; omit it", base)
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || strings.ContainsAny(b.Mirror, " \t\n[]"):
		c.add("base.mirror", b.Mirror, "%q is not a mirror; give a URL like http://deb.debian.org/debian", b.Mirror)
	}
}

func (c *checker) release(name string) {
	switch {
	case slices.Contains(releases, name):
	case name == "stable" || name == "testing" || name == "oldstable" || name == "unstable":
		c.add("base.debian", name, "%q changes its meaning with each release; write the code name, for example bookworm", name)
	case manifest.Closest(name, releases) != "" && name != "":
		c.add("base.debian", name, "%q is not a release of Debian; did you mean %q?", name, manifest.Closest(name, releases))
	case !codeName.MatchString(name):
		c.add("base.debian", name, "%q is not a release of Debian; write one of the code names %s", name, strings.Join(releases, ", "))
	default:
		c.add("base.debian", name, "%q is not a release of Debian; the releases are %s", name, strings.Join(releases, ", "))
	}
}

// below checks a path that is read below the builder node's source directory.
func (c *checker) below(at, name string) {
	switch {
	case name == "":
		c.add(at, name, "is empty; give a path below the source directory of the builder node")
	case path.IsAbs(name):
		c.add(at, name, "%q is absolute; give the path below the source directory of the builder node", name)
	case strings.ContainsRune(name, 0) || path.Clean(name) == ".." || strings.HasPrefix(path.Clean(name), "../"):
		c.add(at, name, "%q leads out of the source directory of the builder node", name)
	}
}

func (c *checker) packages() {
	form := otherPackage
	if c.recipe.Base.Debian != "" {
		form = debianPackage
	}
	if len(c.recipe.Packages) > maxPackages {
		c.add("packages", "", "has %d entries; at most %d are allowed", len(c.recipe.Packages), maxPackages)
		return
	}
	for i, name := range c.recipe.Packages {
		if at := fmt.Sprintf("packages[%d]", i); !form.MatchString(name) {
			hint := ""
			if lower := strings.ToLower(name); form.MatchString(lower) {
				hint = fmt.Sprintf("; did you mean %q?", lower)
			} else if strings.ContainsAny(name, " ,") {
				hint = "; write each package on a line of its own"
			}
			c.add(at, name, "%q is not the name of a package%s", name, hint)
		}
	}
	for i, pattern := range c.recipe.Exclude {
		at := fmt.Sprintf("exclude[%d]", i)
		if !strings.HasPrefix(pattern, "/") || strings.ContainsAny(pattern, "\n\x00") || pattern == "/" || pattern == "/*" {
			c.add(at, pattern, "%q is not a pattern of absolute paths; write one like /usr/share/doc/*", pattern)
		} else if c.recipe.Base.Debian == "" {
			c.add(at, pattern, "applies to base.debian only; remove the files with a command")
		}
	}
}

// noFiles are where a root has no files of its own.
var noFiles = []string{"/proc", "/sys", "/dev", "/run", "/tmp"}

func (c *checker) files() {
	if len(c.recipe.Files) > maxFiles {
		c.add("files", "", "has %d entries; at most %d are allowed", len(c.recipe.Files), maxFiles)
		return
	}
	first := map[string]int{}
	for i, f := range c.recipe.Files {
		at := fmt.Sprintf("files[%d]", i)
		switch {
		case f.Path == "" && !c.source.Has(at+".path"):
			c.add(at+".path", "", "is missing; give the absolute path of the file in the root")
		case !strings.HasPrefix(f.Path, "/") || path.Clean(f.Path) != f.Path || f.Path == "/" || strings.ContainsRune(f.Path, 0):
			c.add(at+".path", f.Path, "%q is not the plain absolute path of a file, like /etc/motd", f.Path)
		case slices.ContainsFunc(noFiles, func(dir string) bool { return f.Path == dir || strings.HasPrefix(f.Path, dir+"/") }):
			c.add(at+".path", f.Path, "%q is hidden by a mount on running systems; choose another path", f.Path)
		}
		if j, ok := first[f.Path]; ok && f.Path != "" {
			c.add(at+".path", f.Path, "%q is the path of files[%d], too; keep one", f.Path, j)
		} else {
			first[f.Path] = i
		}
		content := f.Content != "" || c.source.Has(at+".content")
		switch {
		case content && (f.Source != "" || c.source.Has(at+".source")):
			c.add(at+".source", f.Source, "conflicts with content; give one of the two")
		case c.source.Has(at+".source") || f.Source != "":
			c.below(at+".source", f.Source)
		case !content:
			c.add(at+".content", "", "is missing; give the content, or a source")
		}
		if _, err := parseMode(f.Mode); err != nil {
			c.add(at+".mode", f.Mode, "%v", err)
		}
	}
}

// parseMode reads an octal mode; empty is 0644.
func parseMode(text string) (uint32, error) {
	if text == "" {
		return 0o644, nil
	}
	mode, err := strconv.ParseUint(text, 8, 32)
	if err != nil || mode > 0o7777 || len(text) < 3 || len(text) > 5 {
		return 0, fmt.Errorf("%q is not a mode; write it in octal and in quotes, for example \"0755\"", text)
	}
	return uint32(mode), nil
}

// FileMode is the file's mode bits (st_mode, without the type).
func (f File) FileMode() uint32 {
	mode, _ := parseMode(f.Mode) // checked by Parse
	return mode
}

func (c *checker) commands() {
	if len(c.recipe.Commands) > maxCommands {
		c.add("commands", "", "has %d entries; at most %d are allowed", len(c.recipe.Commands), maxCommands)
		return
	}
	for i, text := range c.recipe.Commands {
		if at := fmt.Sprintf("commands[%d]", i); strings.TrimSpace(text) == "" {
			c.add(at, "", "is empty; give a command for /bin/sh")
		} else if strings.ContainsRune(text, 0) {
			c.add(at, "", "contains a zero byte; remove it")
		}
	}
}
