package manifest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
)

const (
	// MaxDatasetName bounds the name of a dataset within its project.
	MaxDatasetName = MaxLabel
	// maxDatasetNodes is how many nodes a request about replicas may name.
	maxDatasetNodes = 1000
	// maxCredential bounds each part of a credential, in bytes.
	maxCredential = 16 << 10
)

// CheckDataset refuses a request for a dataset that no project can have, and returns it as it is stored. The error is an *Invalid.
func CheckDataset(req api.DatasetRequest, src *Source) (api.DatasetRequest, error) {
	n := normalizer{src: src}
	n.label("name", req.Name, MaxDatasetName)
	if req.Project != "" || src.Has("project") {
		n.label("project", req.Project, MaxProjectName)
	}
	switch {
	case len(req.Files) == 0:
		n.add("files", "", "is missing; give at least one file")
	case len(req.Files) > api.MaxDatasetFiles:
		n.add("files", strconv.Itoa(len(req.Files)), "has %d files; a dataset has at most %d", len(req.Files), api.MaxDatasetFiles)
		return req, n.err()
	}
	files := slices.Clone(req.Files)
	for i := range files {
		normal, problems := dataset.Normal(files[i])
		files[i] = normal
		for _, p := range problems {
			n.add(fmt.Sprintf("files[%d].%s", i, p.Field), p.Value, "%s", p.Message)
		}
	}
	req.Files = files
	if len(n.problems) == 0 {
		for _, p := range dataset.Clashes(files) {
			n.add(p.Field, p.Value, "%s", p.Message)
		}
		if text, err := json.Marshal(files); err != nil || len(text) > api.MaxDatasetBytes {
			n.add("files", "", "take %d bytes with their places; at most %d are possible: make several datasets", len(text), api.MaxDatasetBytes)
		}
	}
	if c := req.Credential; c != nil {
		if max(len(c.User), len(c.Password), len(c.Token)) > maxCredential {
			n.add("credential", "", "is longer than %d bytes", maxCredential)
		} else if why := dataset.CredentialProblem(c, files); why != "" {
			n.add("credential", "", "%s", why)
		}
	}
	return req, n.err()
}

// CheckDatasetNodes refuses a request that names too many nodes, or something that is no node's name. The error is an *Invalid.
func CheckDatasetNodes(req api.DatasetNodes, src *Source) error {
	n := normalizer{src: src}
	if len(req.Nodes) > maxDatasetNodes {
		n.add("nodes", strconv.Itoa(len(req.Nodes)), "has %d nodes; at most %d are possible in one request", len(req.Nodes), maxDatasetNodes)
		return n.err()
	}
	for i, name := range req.Nodes {
		n.label(fmt.Sprintf("nodes[%d]", i), name, MaxLabel)
	}
	return n.err()
}

// datasetWays are the ways to read a dataset.
var datasetWays = []api.DatasetWay{api.DatasetCopy, api.DatasetStream, api.DatasetCached, api.DatasetPreloaded, api.DatasetAuto}

// datasets checks the datasets that members of a group have.
func (n *normalizer) datasets(path string, g api.Group) []string {
	if len(g.Datasets) == 0 {
		return g.Datasets
	}
	if len(g.Datasets) > api.MaxGroupDatasets {
		n.add(path, strconv.Itoa(len(g.Datasets)), "has %d datasets; a group can have %d", len(g.Datasets), api.MaxGroupDatasets)
		return g.Datasets
	}
	if g.Stack != api.StackContainer {
		n.add(path, "", "members on the stack %q can't have datasets; omit them, or use the stack %q", g.Stack, api.StackContainer)
	}
	uses := slices.Clone(g.Datasets)
	for i, text := range g.Datasets {
		at, use := fmt.Sprintf("%s[%d]", path, i), api.ParseDatasetUse(text)
		if problem := LabelProblem(use.Name, MaxDatasetName); problem != "" {
			n.add(at, text, "%s", problem)
		} else if _, j, _ := g.UseOf(use.Name); j < i {
			n.add(at, text, "%q is also %s[%d]; name every dataset once", use.Name, path, j)
		}
		if !slices.Contains(datasetWays, use.Way) {
			n.add(at, text, "%q is no way to read a dataset; write %[2]s for a copy on the member's node, %[2]s:stream for its sources, %[2]s:cached for a cache on the member's node, %[2]s:preloaded to have all of it in there first, %[2]s:auto for the quickest of copy, stream and cached, or %[2]s:auto:0.2 for that where a member reads a fifth of it", use.Way, use.Name)
		}
		uses[i] = use.String()
	}
	return uses
}

// reads gives the datasets of a group whose ways are left open the fraction that its members read, where they have none themselves.
func (n *normalizer) reads(path string, g api.Group) []string {
	if g.Reads == 0 && !n.src.Has(path) {
		return g.Datasets
	}
	given := strconv.FormatFloat(g.Reads, 'g', -1, 64)
	if !(g.Reads > 0 && g.Reads <= 1) { // NaN is neither
		n.add(path, given, "must be above 0 and at most 1: the fraction of each dataset that a member reads; omit it to have it learned")
		return g.Datasets
	}
	used, uses := false, slices.Clone(g.Datasets)
	for i, text := range g.Datasets {
		if use := api.ParseDatasetUse(text); use.Way == api.DatasetAuto {
			use.Reads, used = cmp.Or(use.Reads, g.Reads), true
			uses[i] = use.String()
		}
	}
	if !used {
		n.add(path, given, "is for datasets whose way is left open; write NAME:auto for one of them, or omit reads")
	}
	return uses
}

// datasetsApart refuses volumes where groups have their datasets.
func (n *normalizer) datasetsApart(spec *api.ClusterSpec) {
	if len(api.DatasetsOf(spec.Groups)) == 0 {
		return
	}
	for i, v := range spec.Volumes {
		if atOrBelow(v.Path, api.DatasetsPath) {
			n.add(fmt.Sprintf("volumes[%d].path", i), v.Path, "%s is where members have their datasets; attach the volume elsewhere", v.Path)
		}
	}
}
