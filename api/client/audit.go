package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
)

// AuditQuery selects records of the audit log.
type AuditQuery struct {
	// User is the name of a user; empty: all users. Failed selects only requests that were refused or failed.
	User   string
	Failed bool
	// Limit bounds the number of records.
	Limit int
}

// auditPage is how many records are asked for at once.
const auditPage = 1000

// Audit returns records of the audit log, newest first.
func (c *Client) Audit(ctx context.Context, q AuditQuery) ([]api.AuditRecord, error) {
	all := []api.AuditRecord{}
	for before := int64(0); len(all) < q.Limit; {
		query, n := url.Values{}, min(auditPage, q.Limit-len(all))
		query.Set("limit", strconv.Itoa(n))
		if q.User != "" {
			query.Set("user", q.User)
		}
		if q.Failed {
			query.Set("failed", "true")
		}
		if before > 0 {
			query.Set("before", strconv.FormatInt(before, 10))
		}
		page, err := items[api.AuditRecord](ctx, c, "/v1/audit?"+query.Encode())
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if len(page) < n || page[len(page)-1].Seq <= 1 {
			break
		}
		before = page[len(page)-1].Seq
	}
	return all, nil
}

// VerifyAudit has the audit log verified.
func (c *Client) VerifyAudit(ctx context.Context) (api.AuditReport, error) {
	return answer[api.AuditReport](ctx, c, http.MethodGet, "/v1/audit/verification", nil)
}
