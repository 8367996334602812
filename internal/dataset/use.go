package dataset

import (
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// defaultPort is XRootD's (IANA: "rootd").
const defaultPort = "1094"

// Unfit is why members can't read a dataset in some way, "" if they can.
func Unfit(files []api.DatasetFile, private bool, way api.DatasetWay) string {
	switch way {
	case api.DatasetStream:
		if private { // each program of a member would have to show the credential, and so would have it
			return "its sources ask for a credential, which members never get; omit :stream to have a copy"
		}
	case api.DatasetCached, api.DatasetPreloaded:
		_, why := BackingOf(files, private)
		return why
	}
	return ""
}

// Backing is what a dataset's cache reads from: one server of XRootD, or else web servers.
type Backing struct {
	// XRootD is the server, and the zero value for one of web servers.
	XRootD Origin
	// Web are the URLs of the files, in their order.
	Web []string
}

// BackingOf returns what a cache of a dataset reads from, or why no cache can be before its sources. Caches present credentials to web servers only: XRootD's
// has no setting for one.
func BackingOf(files []api.DatasetFile, private bool) (backing Backing, why string) {
	origin, why := OriginOf(files)
	if why == "" && !private {
		return Backing{XRootD: origin}, ""
	}
	web, whyNot := webOf(files)
	switch {
	case whyNot == "":
		return Backing{Web: web}, ""
	case private:
		return Backing{}, "its sources ask for a credential, which caches present to web servers only: " + whyNot
	case len(web) > 0 || origin.Server == "" && !anyXRootD(files):
		return Backing{}, whyNot
	default:
		return Backing{}, why
	}
}

// anyXRootD reports whether any file is at a server of XRootD.
func anyXRootD(files []api.DatasetFile) bool {
	return slices.ContainsFunc(files, func(f api.DatasetFile) bool {
		return slices.ContainsFunc(f.URLs, func(text string) bool { return strings.HasPrefix(text, "root://") })
	})
}

// plainURL is a URL of a web server that its cache's configuration can have.
var plainURL = regexp.MustCompile(`^https?://[A-Za-z0-9.-]+(:[0-9]+)?/[A-Za-z0-9._/+=,@~:%?&-]+$`)

// webOf returns the URLs of a dataset's files at web servers: the first of each file.
func webOf(files []api.DatasetFile) (urls []string, why string) {
	for _, f := range files {
		i := slices.IndexFunc(f.URLs, func(text string) bool {
			return strings.HasPrefix(text, "http://") || strings.HasPrefix(text, "https://")
		})
		if i < 0 {
			return nil, fmt.Sprintf("file %s has no source by http:// or https://; ask for a copy instead", f.Path)
		}
		u, err := url.Parse(f.URLs[i])
		switch {
		case err != nil || !plainURL.MatchString(f.URLs[i]):
			return nil, fmt.Sprintf("file %s is at a URL with characters that caches don't take (%s); ask for a copy instead", f.Path, f.URLs[i])
		case !plainPath.MatchString("/" + f.Path):
			return nil, fmt.Sprintf("file %s has a name with characters that caches don't take; ask for a copy instead", f.Path)
		case u.Scheme == "https" && isAddress(u.Hostname()): // nginx compares names alone with a certificate
			return nil, fmt.Sprintf("file %s is at %s, whose certificate caches can verify by a name only; name the host, or ask for a copy instead", f.Path, u.Host)
		}
		urls = append(urls, f.URLs[i])
	}
	return urls, ""
}

func isAddress(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

// plainPath is a path of which each part of XRootD makes the same: words in its configuration, its table of rights and its client's URLs.
var plainPath = regexp.MustCompile(`^/[A-Za-z0-9._/+=,@~:-]+$`)

// Origin is the server of a cached dataset.
type Origin struct {
	// Server is HOST:PORT.
	Server string
	// Paths are the paths of the dataset's files there, in the order of the files.
	Paths []string
}

// OriginOf returns the server that has all files of a dataset, or why no cache can be before them. A cache knows one server by XRootD's protocol, which may
// be a redirector.
func OriginOf(files []api.DatasetFile) (origin Origin, why string) {
	var servers []string // of the first file, in its order
	at := make([]map[string]string, len(files))
	for i, f := range files {
		at[i] = map[string]string{}
		for _, text := range f.URLs {
			u, err := url.Parse(text)
			if err != nil || u.Scheme != "root" {
				continue
			}
			server := u.Host
			if u.Port() == "" {
				server += ":" + defaultPort // an address of IPv6 has its brackets already
			}
			if _, known := at[i][server]; !known {
				at[i][server] = "/" + strings.TrimLeft(u.Path, "/")
			}
			if i == 0 && !slices.Contains(servers, server) {
				servers = append(servers, server)
			}
		}
		for _, path := range at[i] {
			if !plainPath.MatchString(path) {
				return Origin{}, fmt.Sprintf("file %s is at a path with characters that caches don't take (%s); ask for a copy instead", f.Path, path)
			}
		}
		if len(at[i]) == 0 {
			return Origin{}, fmt.Sprintf("file %s has no source by root://, which is all that caches read; ask for a copy instead", f.Path)
		}
	}
	for _, server := range servers {
		paths := make([]string, 0, len(files))
		for i := range files {
			path, there := at[i][server]
			if !there {
				break
			}
			paths = append(paths, path)
		}
		if len(paths) == len(files) && len(files) > 0 {
			return Origin{server, paths}, ""
		}
	}
	return Origin{}, "its files are at several servers, of which none has all, and a cache reads from one; make a dataset for each server, or ask for a copy instead"
}

// URLs are where members of a group read the files of a dataset: the sources, or the cache on their node at a port of their loopback. nil: they have a copy,
// and asked for one. Where the way was left open, a copy is listed by its paths: programs read the list, and need not know the way.
func URLs(files []api.DatasetFile, private bool, use api.DatasetUse, at int) []string {
	var urls []string
	switch use.Way {
	case api.DatasetCopy:
		if use.Open {
			for _, f := range files {
				urls = append(urls, path.Join(api.DatasetsPath, use.Name, f.Path))
			}
		}
	case api.DatasetStream:
		for _, f := range files {
			urls = append(urls, f.URLs[0])
		}
	case api.DatasetCached, api.DatasetPreloaded:
		backing, _ := BackingOf(files, private)
		for _, there := range backing.XRootD.Paths {
			urls = append(urls, fmt.Sprintf("root://127.0.0.1:%d/%s", api.FirstCachePort+at, there))
		}
		for i := range backing.Web {
			urls = append(urls, fmt.Sprintf("http://127.0.0.1:%d/%s", api.FirstCachePort+at, files[i].Path))
		}
	}
	return urls
}

// CacheOrder is a dataset that members of a node read through its cache.
type CacheOrder struct {
	UID  string `json:"uid"`
	Name string `json:"name"`
	// Files are the dataset's; they have a Backing.
	Files []api.DatasetFile `json:"files,omitempty"`
	// Credential is what the sources ask for; nil: nothing. Members never get it.
	Credential *api.DatasetCredential `json:"credential,omitempty"`
	// Preload: members start once all of it is in the cache, verified.
	Preload bool `json:"preload,omitempty"`
	// Purge: the dataset was deleted, and so is what the cache has of it.
	Purge bool `json:"purge,omitempty"`
}

// CacheState is a dataset in a node's cache.
type CacheState struct {
	UID string `json:"uid"`
	// Running: members reach it. Message says why not, or what is wrong with it.
	Running bool   `json:"running,omitempty"`
	Message string `json:"message,omitempty"`
	// SizeBytes is how much it may hold, and HeldBytes what is on the disk.
	SizeBytes int64 `json:"size_bytes"`
	HeldBytes int64 `json:"held_bytes"`
	CacheFigures
	// Readings are what members have read through it.
	Readings []Reading `json:"readings,omitempty"`
}

// Shown is the state as users see it.
func (s CacheState) Shown(node string) api.DatasetCache {
	return api.DatasetCache{
		Node: node, Running: s.Running, Message: s.Message, SizeBytes: s.SizeBytes, HeldBytes: s.HeldBytes, HitBytes: s.HitBytes, MissBytes: s.MissBytes,
		AheadBytes: s.AheadBytes, AgainBytes: s.AgainBytes, TooSmall: s.TooSmall(s.SizeBytes), Restarts: s.Restarts,
	}
}

// CacheFigures are what a cache has done with the bytes that were read from it, by files that were closed.
type CacheFigures struct {
	// HitBytes were read that were there, and MissBytes that had to be fetched.
	HitBytes  int64 `json:"hit_bytes"`
	MissBytes int64 `json:"miss_bytes"`
	// AheadBytes were fetched before any reader asked for them: blocks ahead of readers, and the rest of blocks of which they asked for a part.
	AheadBytes int64 `json:"ahead_bytes"`
	// AgainBytes were fetched once more after they had been there and were removed for lack of room.
	AgainBytes int64 `json:"again_bytes"`
	// Restarts is how often its server ended by itself.
	Restarts int64 `json:"restarts,omitempty"`
}

// TooSmall reports whether a cache can't hold what is read from it: of all that it has fetched, a quarter was there before, and that is no small part of what
// the cache holds.
func (f CacheFigures) TooSmall(sizeBytes int64) bool {
	return f.AgainBytes >= (f.MissBytes+f.AheadBytes)/4 && f.AgainBytes >= sizeBytes/8 && f.AgainBytes > 0
}
