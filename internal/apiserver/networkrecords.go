package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
)

// networkBody is a body that is about a network.
type networkBody struct {
	Name        string `path:"name" doc:"project/NAME or a UID; of another project project/PROJECT.NAME"`
	ContentType string `header:"Content-Type" hidden:"true"`
	RawBody     []byte `contentType:"application/json"`
}

func (s *Server) changeNetworkRecords(ctx context.Context, in *networkBody) (*body[api.NetworkStatus], error) {
	change, src, err := readBody[api.NetworkRecords](rawBody{in.ContentType, in.RawBody})
	if err != nil {
		return nil, err
	}
	if err := manifest.CheckNetworkRecords(change, src); err != nil {
		return nil, failInvalid(err, codeInvalidRequest)
	}
	view, p := s.cfg.Reader.View(), who(ctx)
	network, n := findNetwork(p, view, in.Name)
	switch {
	case network != nil:
		return nil, fail(codeInvalidRequest, "network %q belongs to a cluster; only networks of projects have records", in.Name)
	case n == nil:
		return nil, noNetwork(in.Name)
	}
	if err := mayChangeShared(p, view, projectOr(n.Project), "networks"); err != nil {
		return nil, err
	}
	changed, revision, err := s.cfg.Writer.ChangeNetworkRecords(ctx, n.Name, func(records []api.NetworkRecord) ([]api.NetworkRecord, error) {
		return changedRecords(records, change)
	})
	switch {
	case errors.Is(err, state.ErrNotFound):
		return nil, noNetwork(in.Name)
	case err != nil:
		return nil, err
	}
	view, _ = s.readOwnWrite(ctx, revision)
	return &body[api.NetworkStatus]{joinProjectNetwork(p, view, &changed, quarantinedPorts(view))}, nil
}

// changedRecords returns the records of a network after a change, by name.
func changedRecords(records []api.NetworkRecord, change api.NetworkRecords) ([]api.NetworkRecord, error) {
	at := func(name string) int {
		return slices.IndexFunc(records, func(r api.NetworkRecord) bool { return r.Name == manifest.RecordName(name) })
	}
	for i, name := range change.Remove {
		found := at(name)
		if found < 0 {
			return nil, failFields(codeInvalidRequest, api.FieldProblem{
				Location: fmt.Sprintf("remove[%d]", i), Value: name, Message: fmt.Sprintf("the network has no record %q", name),
			})
		}
		records = slices.Delete(records, found, found+1)
	}
	for _, r := range change.Set {
		made := api.NetworkRecord{Name: manifest.RecordName(r.Name)}
		for _, text := range r.Addresses {
			made.Addresses = append(made.Addresses, netip.MustParseAddr(text).String())
		}
		if found := at(r.Name); found >= 0 {
			records[found] = made
		} else {
			records = append(records, made)
		}
	}
	if len(records) > manifest.MaxRecords {
		return nil, failFields(codeInvalidRequest, api.FieldProblem{
			Location: "set", Message: fmt.Sprintf("makes %d records; a network has at most %d", len(records), manifest.MaxRecords),
		})
	}
	slices.SortFunc(records, func(a, b api.NetworkRecord) int { return cmp.Compare(a.Name, b.Name) })
	return records, nil
}
