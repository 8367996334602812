package api

import "strings"

// DatasetWay is how members read a dataset.
type DatasetWay string

// The ways to read a dataset.
const (
	// DatasetCopy is a whole copy on the member's node, verified before the member starts, as a directory at /datasets/NAME. It is the default.
	DatasetCopy DatasetWay = "copy"
	// DatasetStream gives members the URLs of the files' sources.
	DatasetStream DatasetWay = "stream"
	// DatasetCached gives members URLs that lead to a cache on their node, which fetches what they read, as they read it.
	DatasetCached DatasetWay = "cached"
	// DatasetPreloaded is cached, and all of it is read through the cache, and verified, before the member starts.
	DatasetPreloaded DatasetWay = "preloaded"
)

// Cached reports whether members read through a cache on their node.
func (w DatasetWay) Cached() bool { return w == DatasetCached || w == DatasetPreloaded }

// DatasetURLs is the directory in which members find a file for each dataset that they read by URL: NAME.urls, with a URL in each line.
const DatasetURLs = "/etc/nearmetal/datasets"

// FirstCachePort is the port of a member's own loopback at which it reaches the cache of the first dataset that its group asks for; the next one's is the
// next, whether or not those between are cached.
const FirstCachePort = 10940

// DatasetUse is a dataset as a group asks for it.
type DatasetUse struct {
	Name string
	Way  DatasetWay
}

// ParseDatasetUse reads NAME or NAME:WAY. The way may be one that does not exist.
func ParseDatasetUse(text string) DatasetUse {
	name, way, given := strings.Cut(text, ":")
	if !given {
		way = string(DatasetCopy)
	}
	return DatasetUse{Name: name, Way: DatasetWay(way)}
}

// String is the use as it is stored: a copy is NAME alone.
func (u DatasetUse) String() string {
	if u.Way == DatasetCopy {
		return u.Name
	}
	return u.Name + ":" + string(u.Way)
}

// UseOf returns how a group reads a dataset, by the dataset's name, and its place in the group's list; there is false if the group does not ask for it.
func (g Group) UseOf(name string) (use DatasetUse, at int, there bool) {
	for i, text := range g.Datasets {
		if use := ParseDatasetUse(text); use.Name == name {
			return use, i, true
		}
	}
	return DatasetUse{}, 0, false
}

// CopiedDatasets are the names of the datasets of which the group's members have whole copies on their nodes.
func (g Group) CopiedDatasets() []string {
	var names []string
	for _, text := range g.Datasets {
		if use := ParseDatasetUse(text); use.Way == DatasetCopy {
			names = append(names, use.Name)
		}
	}
	return names
}
