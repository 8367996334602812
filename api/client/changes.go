package client

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/url"

	"github.com/nearmetal/nearmetal/api"
)

// Selection selects the objects of a watch of changes. An empty field selects all.
type Selection struct {
	Kind api.Kind
	// Name is the name or ID of an object.
	Name    string
	Project string
}

// Change is one item of a watch of changes.
type Change struct {
	api.Change
	// Synced marks, without an object, that the watch begins or goes on: whatever is read from now on is not older than it. Changes may have been
	// missed before, so read everything again.
	Synced bool
}

// Changes yields Synced, and then which selected objects change, until the loop is left or ctx ends. It resumes when the connection breaks,
// and yields Synced again then. A server that does not answer is waited for, for as long as its restart may take. An error is the last
// thing yielded.
func (c *Client) Changes(ctx context.Context, of Selection) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		take := func(e sseEvent) (bool, error) {
			switch e.name {
			case "sync":
				return yield(Change{Synced: true}, nil), nil
			case string(api.ChangePut), string(api.ChangeDelete):
				var change Change
				if err := json.Unmarshal(e.data, &change.Change); err != nil {
					return false, fmt.Errorf("the watch sent what is no change: %w", err)
				}
				return yield(change, nil), nil
			default:
				return true, nil // a newer server may report more
			}
		}
		if err := c.persistentStream(ctx, changesPath(of), "", true, take, func() {}); err != nil {
			yield(Change{}, err)
		}
	}
}

func changesPath(of Selection) string {
	query := url.Values{}
	for name, value := range map[string]string{"kind": string(of.Kind), "name": of.Name, "project": of.Project} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if len(query) == 0 {
		return "/v1/changes"
	}
	return "/v1/changes?" + query.Encode()
}
