"""Parts of the adaptor for LMDeploy that can be imported anywhere; `lmdeploy_ext` sets the process of an engine up."""
