package driver

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
)

// CheckMounts refuses mounts that could not be mounted where they should be.
func CheckMounts(mounts []Mount) error {
	for i, m := range mounts {
		switch {
		case !filepath.IsAbs(m.Source) || filepath.Clean(m.Source) != m.Source:
			return fmt.Errorf("the directory %q of a volume must be a clean absolute path", m.Source)
		case !path.IsAbs(m.Path) || path.Clean(m.Path) != m.Path || m.Path == "/":
			return fmt.Errorf("a volume's path in the member must be absolute, clean and not the root, not %q", m.Path)
		case slices.ContainsFunc(mounts[:i], func(other Mount) bool { return other.Path == m.Path }):
			return fmt.Errorf("two volumes have the path %s", m.Path)
		}
	}
	return nil
}
