package api

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// homeVolumePrefix begins the names of homes.
const homeVolumePrefix = "home-"

// HomeVolumeName returns the name within a project of the volume that is a user's home: home-USER, or home-HASH where a user's name is no part of
// a DNS label.
func HomeVolumeName(user string) string {
	if user == "" {
		user = "nobody"
	}
	plain := len(homeVolumePrefix)+len(user) <= 63 && !strings.HasSuffix(user, "-")
	for _, c := range []byte(user) {
		plain = plain && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-')
	}
	if plain {
		return homeVolumePrefix + user
	}
	sum := sha256.Sum256([]byte(user))
	return homeVolumePrefix + hex.EncodeToString(sum[:8])
}

// IsHomeVolumeName reports whether a name within a project is kept for homes.
func IsHomeVolumeName(name string) bool { return strings.HasPrefix(name, homeVolumePrefix) }

// VolumesOf returns the volumes that a cluster asks for, its own home and that of its user among them, by their names within its project. A name
// comes once, writable if any attachment is.
func VolumesOf(in *ClusterIntent) []VolumeAttachment {
	var all []VolumeAttachment
	add := func(a VolumeAttachment) {
		i := slices.IndexFunc(all, func(o VolumeAttachment) bool { return o.Name == a.Name })
		if i < 0 {
			all = append(all, a)
			return
		}
		all[i].ReadOnly = all[i].ReadOnly && a.ReadOnly
	}
	switch {
	case in.Spec.Home.Kind == HomeOfUser:
		add(VolumeAttachment{Name: HomeVolumeName(in.User), Path: "/home"})
	case in.Spec.Home.Bounded():
		add(VolumeAttachment{Name: ClusterHomeName(in.UID), Path: "/home"})
	}
	for _, a := range in.Spec.Volumes {
		add(a)
	}
	return all
}
