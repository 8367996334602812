package apiserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/dataset/paths"
	"github.com/nearmetal/nearmetal/internal/dataset/plan"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// maxDatasets is how many datasets a project may have: the leader keeps all of them in memory.
const maxDatasets = 64

// datasetInput names a dataset.
type datasetInput struct {
	Name string `path:"name" doc:"NAME or a UID; of another project PROJECT.NAME"`
}

// datasetBody is a body that is about a dataset.
type datasetBody struct {
	Name        string `path:"name" doc:"NAME or a UID; of another project PROJECT.NAME"`
	ContentType string `header:"Content-Type" hidden:"true"`
	RawBody     []byte `contentType:"application/json"`
}

func (s *Server) registerDatasets() {
	operation(s, "GET /v1/datasets", AccessRead, "list-datasets", "List datasets",
		"Datasets by name, with their replicas: those of the token's project; for an administrator those of all projects.", http.StatusOK, s.listDatasets)
	operation(s, "POST /v1/datasets", AccessChange, "create-dataset", "Create a dataset of a project",
		"Files with their places and checksums. Nothing is fetched before a cluster asks for the dataset or a node is to replicate it. "+
			"A credential is stored sealed, and no answer has it.",
		http.StatusCreated, s.createDataset, bodyCodes(codeInvalidRequest, codeDatasetExists, codeTooManyDatasets, codeNoProject, codeUnavailable)...)
	operation(s, "GET /v1/datasets/{name}", AccessRead, "get-dataset", "Show a dataset", "", http.StatusOK, s.getDataset, codeNoDataset)
	operation(s, "POST /v1/datasets/{name}/replicate", AccessChange, "replicate-dataset", "Have nodes keep a replica of a dataset",
		"The named nodes fetch the dataset and keep it, whether or not members there have it.", http.StatusOK, s.replicateDataset,
		bodyCodes(codeInvalidRequest, codeNoDataset, codeNoNode, codeOverQuota)...)
	operation(s, "POST /v1/datasets/{name}/evict", AccessChange, "evict-dataset", "Remove replicas of a dataset",
		"The named nodes remove their replicas; without names, all nodes do. Refused while members on one of them have the dataset.", http.StatusOK, s.evictDataset,
		bodyCodes(codeInvalidRequest, codeNoDataset, codeNoNode, codeReplicaInUse)...)
	operation(s, "POST /v1/datasets/{name}/check", AccessChange, "check-dataset", "Verify all replicas of a dataset again",
		"Nodes read their replicas and compare the checksums. A file that has changed is removed at once, and fetched again. `checks` of the answer is the "+
			"number of this check: a replica has passed it once its own `checked` is as large.",
		http.StatusOK, s.checkDataset, codeNoDataset)
	operation(s, "DELETE /v1/datasets/{name}", AccessChange, "delete-dataset", "Delete a dataset",
		"Refused while a cluster asks for it. Its replicas are removed; the files at their sources stay.", http.StatusNoContent, s.deleteDataset,
		codeNoDataset, codeDatasetInUse)
}

func noDataset(name string) *failure {
	return fail(codeNoDataset, "dataset %q does not exist; 'nearmetal dataset list' lists the datasets", name)
}

// findDataset returns the dataset that a principal means by a name or a UID, and may know of, or nil.
func findDataset(p tenancy.Principal, view *state.View, name string) *api.Dataset {
	var d *api.Dataset
	if full, err := tenancy.Resolve(p, "", name); err == nil {
		d = view.Dataset(full)
	}
	if d == nil {
		if i := slices.IndexFunc(view.Datasets, func(d *api.Dataset) bool { return d.UID == name }); i >= 0 {
			d = view.Datasets[i]
		}
	}
	if d == nil || !seesProject(p, d.Project) {
		return nil
	}
	return d
}

func (s *Server) listDatasets(ctx context.Context, _ *struct{}) (*body[api.List[api.DatasetStatus]], error) {
	view, p := s.cfg.Reader.View(), who(ctx)
	list := api.List[api.DatasetStatus]{Items: []api.DatasetStatus{}}
	for _, d := range view.Datasets {
		if seesProject(p, d.Project) {
			list.Items = append(list.Items, s.joinDataset(p, view, d))
		}
	}
	slices.SortStableFunc(list.Items, func(a, b api.DatasetStatus) int {
		return cmp.Or(cmp.Compare(a.Project, b.Project), cmp.Compare(a.Name, b.Name))
	})
	return &body[api.List[api.DatasetStatus]]{list}, nil
}

func (s *Server) getDataset(ctx context.Context, in *datasetInput) (*body[api.DatasetStatus], error) {
	view, p := s.cfg.Reader.View(), who(ctx)
	d := findDataset(p, view, in.Name)
	if d == nil {
		return nil, noDataset(in.Name)
	}
	return &body[api.DatasetStatus]{s.joinDataset(p, view, d)}, nil
}

// joinDataset makes what users see of a dataset: as it is stored, without its credential, with what nodes say of it.
func (s *Server) joinDataset(p tenancy.Principal, view *state.View, d *api.Dataset) api.DatasetStatus {
	_, own := tenancy.Split(d.Name)
	out := api.DatasetStatus{
		Name: own, UID: d.UID, Project: projectOr(d.Project), User: d.User, Private: len(d.Sealed) > 0, Files: d.Files, Replicas: []api.DatasetReplica{},
		Clusters: []string{}, Checks: d.Checks, CreatedAt: d.CreatedAt,
	}
	for _, f := range d.Files {
		out.SizeBytes += f.SizeBytes
	}
	if outcomes := view.OutcomesOf(d.UID); outcomes != nil {
		out.Errors, out.Reads = outcomes.Errors, paths.ReadsOf(outcomes, s.cfg.Now())
	}
	replicas := map[string]*api.DatasetReplica{}
	at := func(node string) *api.DatasetReplica {
		if replicas[node] == nil {
			replicas[node] = &api.DatasetReplica{Node: node, Phase: api.ReplicaUnknown, OfBytes: out.SizeBytes, Message: "its node is not heard of"}
		}
		return replicas[node]
	}
	for _, node := range d.Nodes {
		at(node).Kept = true
	}
	for _, c := range view.Clusters {
		if projectOr(c.Intent.Project) != out.Project || !slices.Contains(api.DatasetsOf(c.Intent.Spec.Groups), own) {
			continue
		}
		if _, name := tenancy.Split(c.Name()); seesCluster(p, c.Name()) {
			out.Clusters = append(out.Clusters, name)
		}
		for _, node := range nodesWithDataset(c, own) {
			at(node).InUse = true
		}
	}
	for _, n := range s.cfg.Live.Datasets() {
		out.Caches = append(out.Caches, cachesOf(n, d.UID)...)
		for i := range n.States {
			if n.States[i].UID == d.UID {
				say(at(n.Name), &n.States[i])
			}
		}
	}
	for _, node := range slices.Sorted(maps.Keys(replicas)) {
		r := replicas[node]
		if phase, _, _ := s.cfg.Live.Node(node); r.Phase == api.ReplicaUnknown && phase == api.NodeReady {
			r.Phase, r.Message = api.ReplicaWaiting, ""
		}
		out.Replicas = append(out.Replicas, *r)
		if r.Phase == api.ReplicaWhole { // nobody may have said how large the files are
			out.SizeBytes = max(out.SizeBytes, r.HeldBytes)
		}
	}
	return out
}

// cachesOf is what a node says of its cache of a dataset.
func cachesOf(n plan.Node, uid string) []api.DatasetCache {
	var caches []api.DatasetCache
	for _, c := range n.Caches {
		if c.UID == uid {
			caches = append(caches, c.Shown(n.Name))
		}
	}
	return caches
}

// say adds what a node says of its replica.
func say(r *api.DatasetReplica, said *dataset.State) {
	r.Phase, r.Message = api.ReplicaWaiting, said.Message
	switch {
	case said.Whole:
		r.Phase = api.ReplicaWhole
	case said.Failed:
		r.Phase = api.ReplicaFailed
	case said.HeldBytes > 0:
		r.Phase = api.ReplicaFetching
	}
	r.HeldBytes, r.OfBytes, r.InUse, r.Checked = said.HeldBytes, max(said.OfBytes, r.OfBytes), r.InUse || said.InUse, said.Checked
	r.FromSourceBytes, r.FromPeersBytes = said.FromSourceBytes, said.FromPeersBytes
}

// nodesWithDataset are the nodes on which members of a cluster have a dataset, those that are being released included.
func nodesWithDataset(c *state.Cluster, own string) []string {
	var nodes []string
	for a := range c.All() {
		for _, g := range c.Intent.Spec.Groups {
			if g.Name != a.Group {
				continue
			}
			if use, _, asked := g.UseOf(own); asked && use.For(a).Way == api.DatasetCopy {
				nodes = append(nodes, a.Node)
			}
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

func (s *Server) createDataset(ctx context.Context, in *rawBody) (*created[api.DatasetStatus], error) {
	req, src, err := readBody[api.DatasetRequest](*in)
	if err != nil {
		return nil, err
	}
	if req, err = manifest.CheckDataset(req, src); err != nil {
		return nil, failInvalid(err, codeInvalidRequest)
	}
	p, view := who(ctx), s.cfg.Reader.View()
	project := cmp.Or(req.Project, projectOr(p.Project))
	if err := mayChangeShared(p, view, project, "datasets"); err != nil {
		return nil, err
	}
	if err := datasetIsNew(view, project, req.Name); err != nil {
		return nil, err
	}
	d := api.Dataset{
		Name: tenancy.FullName(project, req.Name), UID: newID(uidLetters), Project: project, User: userOf(ctx), Files: req.Files, CreatedAt: s.cfg.Now().UTC(),
	}
	if d.Sealed, err = s.sealCredential(d.UID, req.Credential); err != nil {
		return nil, err
	}
	revision, err := s.cfg.Writer.CreateDataset(ctx, d)
	switch {
	case errors.Is(err, state.ErrExists):
		return nil, datasetExists(req.Name)
	case errors.Is(err, state.ErrNoProject):
		return nil, noProject(project)
	case err != nil:
		return nil, err
	}
	view, _ = s.readOwnWrite(ctx, revision)
	return &created[api.DatasetStatus]{Location: "/v1/datasets/" + d.UID, Body: s.joinDataset(p, view, &d)}, nil
}

// sealCredential seals the credential of a dataset's sources for that dataset; nil: there is none.
func (s *Server) sealCredential(uid string, c *api.DatasetCredential) ([]byte, error) {
	if c == nil {
		return nil, nil
	}
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	return s.seal(uid, string(text))
}

// datasetIsNew refuses a dataset whose name is taken, or that would be one too many.
func datasetIsNew(view *state.View, project, name string) error {
	if view.Dataset(tenancy.FullName(project, name)) != nil {
		return datasetExists(name)
	}
	if count := len(datasetNames(project, view)); count >= maxDatasets {
		return fail(codeTooManyDatasets, "project %q has %d datasets, the most that a project may have; delete one first", project, count)
	}
	return nil
}

func datasetExists(name string) *failure {
	return fail(codeDatasetExists, "dataset %q already exists; choose another name, or delete it first: nearmetal dataset delete %s", name, name)
}

// datasetNames returns the names of a project's datasets, in order.
func datasetNames(project string, view *state.View) []string {
	var names []string
	for _, d := range view.Datasets {
		if projectOr(d.Project) == project {
			_, own := tenancy.Split(d.Name)
			names = append(names, own)
		}
	}
	return names
}

// knownDatasets refuses a cluster that asks for datasets which its project does not have, or in a way in which they can't be read.
func knownDatasets(spec api.ClusterSpec, project string, view *state.View) error {
	for i, g := range spec.Groups {
		for j, text := range g.Datasets {
			use := api.ParseDatasetUse(text)
			var f *failure
			problem := "is not a dataset of project " + project
			if d := view.Dataset(tenancy.FullName(project, use.Name)); d == nil {
				f = fail(codeUnknownDataset, "dataset %q of group %q %s; %s", use.Name, g.Name, problem, datasetsOfProject(project, use.Name, view))
			} else if problem = dataset.Unfit(d.Files, len(d.Sealed) > 0, use.Way); problem != "" {
				f = fail(codeUnfitDataset, "dataset %q of group %q can't be read so (%s): %s", use.Name, g.Name, use.Way, problem)
			} else {
				continue
			}
			f.Errors = []api.FieldProblem{{Location: fmt.Sprintf("%s[%d]", groupField(spec, i, "datasets"), j), Value: text, Message: problem}}
			return f
		}
	}
	return nil
}

// datasetsOfProject lists the datasets of a project, and the one that was perhaps meant.
func datasetsOfProject(project, asked string, view *state.View) string {
	names := datasetNames(project, view)
	if len(names) == 0 {
		return "the project has none: nearmetal dataset add " + asked
	}
	text := "its datasets: " + quoteAll(names)
	if near := manifest.Closest(asked, names); near != "" {
		text += fmt.Sprintf("; did you mean %q?", near)
	}
	return text
}

// datasetsText are the datasets of a group, none for both ways to say so.
func datasetsText(g api.Group) string {
	return cmp.Or(strings.Join(slices.Sorted(slices.Values(g.Datasets)), ","), "none")
}

// datasetNodes reads a body that names nodes.
func (s *Server) datasetNodes(in *datasetBody, view *state.View) ([]string, error) {
	req, src, err := readBody[api.DatasetNodes](rawBody{in.ContentType, in.RawBody})
	if err != nil {
		return nil, err
	}
	if err := manifest.CheckDatasetNodes(req, src); err != nil {
		return nil, failInvalid(err, codeInvalidRequest)
	}
	for _, name := range req.Nodes {
		if view.Node(name) == nil {
			return nil, fail(codeNoNode, "node %q does not exist; 'nearmetal node list' lists the nodes", name)
		}
	}
	slices.Sort(req.Nodes)
	return slices.Compact(req.Nodes), nil
}

// changeDataset changes a dataset that a principal may change.
func (s *Server) changeDataset(ctx context.Context, d *api.Dataset, asked string, change func(*api.Dataset) error) (*body[api.DatasetStatus], error) {
	changed, revision, err := s.cfg.Writer.ChangeDataset(ctx, d.Name, d.UID, change)
	if errors.Is(err, state.ErrNotFound) {
		return nil, noDataset(asked)
	}
	if err != nil {
		return nil, err
	}
	view, _ := s.readOwnWrite(ctx, revision)
	return &body[api.DatasetStatus]{s.joinDataset(who(ctx), view, &changed)}, nil
}

// changeable returns a dataset that a principal may change.
func (s *Server) changeable(ctx context.Context, name string) (*api.Dataset, *state.View, error) {
	view, p := s.cfg.Reader.View(), who(ctx)
	d := findDataset(p, view, name)
	if d == nil {
		return nil, nil, noDataset(name)
	}
	return d, view, mayChangeShared(p, view, projectOr(d.Project), "datasets")
}

func (s *Server) replicateDataset(ctx context.Context, in *datasetBody) (*body[api.DatasetStatus], error) {
	d, view, err := s.changeable(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	nodes, err := s.datasetNodes(in, view)
	if err != nil {
		return nil, err
	}
	if len(nodes) == 0 {
		return nil, failFields(codeInvalidRequest, api.FieldProblem{Location: "nodes", Message: "is empty; name the nodes that should keep a replica"})
	}
	if err := s.replicasFit(view, d, nodes); err != nil {
		return nil, err
	}
	return s.changeDataset(ctx, d, in.Name, func(d *api.Dataset) error {
		d.Nodes = slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(d.Nodes), nodes...))))
		return nil
	})
}

func (s *Server) evictDataset(ctx context.Context, in *datasetBody) (*body[api.DatasetStatus], error) {
	d, view, err := s.changeable(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	nodes, err := s.datasetNodes(in, view)
	if err != nil {
		return nil, err
	}
	now := s.joinDataset(who(ctx), view, d)
	if len(nodes) == 0 {
		for _, r := range now.Replicas {
			nodes = append(nodes, r.Node)
		}
	}
	var used []string
	for _, r := range now.Replicas {
		if r.InUse && slices.Contains(nodes, r.Node) {
			used = append(used, r.Node)
		}
	}
	if len(used) > 0 {
		return nil, fail(codeReplicaInUse, "members on %s have dataset %q; nothing was removed: delete their clusters first, or name other nodes", strings.Join(used, ", "), in.Name)
	}
	return s.changeDataset(ctx, d, in.Name, func(d *api.Dataset) error {
		d.Nodes = slices.DeleteFunc(slices.Clone(d.Nodes), func(n string) bool { return slices.Contains(nodes, n) })
		d.Evictions = maps.Clone(d.Evictions)
		if d.Evictions == nil {
			d.Evictions = map[string]int64{}
		}
		for _, node := range nodes {
			d.Evictions[node]++
		}
		return nil
	})
}

func (s *Server) checkDataset(ctx context.Context, in *datasetInput) (*body[api.DatasetStatus], error) {
	d, _, err := s.changeable(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	return s.changeDataset(ctx, d, in.Name, func(d *api.Dataset) error { d.Checks++; return nil })
}

func (s *Server) deleteDataset(ctx context.Context, in *datasetInput) (*struct{}, error) {
	d, _, err := s.changeable(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	revision, err := s.cfg.Writer.DeleteDataset(ctx, d.Name)
	switch {
	case errors.Is(err, state.ErrNotFound):
		return nil, noDataset(in.Name)
	case errors.Is(err, state.ErrInUse):
		return nil, fail(codeDatasetInUse, "%v", err)
	case err != nil:
		return nil, err
	}
	_, _ = s.readOwnWrite(ctx, revision)
	return nil, nil //nolint:nilnil // 204
}
