package config

import "runtime/debug"

// release is set by the linker for a release: -X github.com/nearmetal/nearmetal/internal/config.release=v1.2.3.
var release string

// Version is the version of this program: the release, or the revision it was built from.
func Version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	var revision, dirty string
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			revision = s.Value[:min(12, len(s.Value))]
		case "vcs.modified":
			if s.Value == "true" {
				dirty = "-dirty"
			}
		}
	}
	if revision == "" {
		return "devel"
	}
	return "devel-" + revision + dirty
}
