package bootagent

import (
	"slices"

	"github.com/nearmetal/nearmetal/internal/generatedfiles"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
)

// placeFiles writes the files of a setup, and removes those of the one before that are not among them.
func placeFiles(root string, before, files []guestlink.File) error {
	var old []string
	for _, f := range before {
		old = append(old, f.Path)
	}
	var all []generatedfiles.File
	for _, f := range files {
		all = append(all, generatedfiles.File{Path: f.Path, Content: f.Content, Mode: uint32(f.Mode), UID: f.UID, GID: f.GID})
	}
	return generatedfiles.Place(root, layersDir, old, all)
}

// allFormats reports whether each root of a guest has a file system that this agent mounts.
func allFormats(formats []image.RootFormat) bool {
	return len(formats) > 0 && len(formats) <= guestlink.MaxRoots &&
		!slices.ContainsFunc(formats, func(f image.RootFormat) bool { return f != image.EROFS && f != image.SquashFS })
}
