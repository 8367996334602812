package recipe

import (
	"fmt"
	"path"
	"strings"

	"github.com/nearmetal/nearmetal/internal/image"
)

// changes checks a recipe that makes a layer of the files that a member changed, to which nothing can be added.
func (c *checker) changes() {
	r := c.recipe
	for _, field := range []string{"packages", "exclude", "files", "commands", "kernel", "services", "disk", "layers"} {
		if c.source.Has(field) {
			c.add(field, "", "can't be applied to changes, which are saved as they are; omit it, or build another layer over this one")
		}
	}
	if err := image.Digest(r.Changes).Check(); err != nil {
		c.add("changes", r.Changes, "%v; 'nearmetal cluster save --files' stores changed files and writes the recipe", err)
	}
	if r.Base.Environment == "" {
		c.add("changes", r.Changes, "needs base.environment, the environment that the member had")
	}
	if r.Root.Format == NoRoot {
		c.add("root.format", NoRoot, "leaves no place for changes; omit it")
	}
	if len(r.KeepKeys) > maxFiles {
		c.add("keep_keys", "", "has %d entries; at most %d are allowed", len(r.KeepKeys), maxFiles)
		return
	}
	for i, at := range r.KeepKeys {
		if !path.IsAbs(at) || path.Clean(at) != at || strings.ContainsRune(at, 0) {
			c.add(fmt.Sprintf("keep_keys[%d]", i), at, "%q is not the plain absolute path of a file, like /home/hpc/.ssh/id_ed25519", at)
		}
	}
}
